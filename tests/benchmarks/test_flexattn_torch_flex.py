"""The compiled peer: every one is compiled from a code object of its own, and never past Dynamo's limits."""

import pytest
import torch

from benchmarks.torch_flexattn import torch_flex


@pytest.fixture
def settings(monkeypatch):
    """PyTorch's settings, put back afterwards."""
    dynamo, functorch = torch._dynamo.config, torch._functorch.config
    with dynamo.patch(recompile_limit=8), functorch.patch(donated_buffer=True):
        yield dynamo, functorch


def test_two_peers_share_no_code_object(settings, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    first, second = torch_flex.compiled(), torch_flex.compiled()
    assert first.__code__ is not second.__code__
    assert first.__code__ != second.__code__


def test_limits_are_lifted_and_graphs_may_be_kept(settings):
    torch_flex.compiled()
    dynamo, functorch = settings
    assert dynamo.recompile_limit == dynamo.cache_size_limit == torch_flex.MANY
    assert dynamo.accumulated_recompile_limit == torch_flex.MANY
    assert functorch.donated_buffer is False
