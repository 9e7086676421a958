"""What a layer's mods capture goes where the layer goes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch_flexattn import masks, scores
from torch_flexattn.nn import FlexMultiheadAttention, GroupedQueryAttention

DOCUMENTS = torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize("kind", [FlexMultiheadAttention, GroupedQueryAttention])
def test_captured_tensors_move_and_keep_their_type(kind: Callable[..., nn.Module]) -> None:
    layer = kind(12, 3, score_mod=scores.alibi(3), mask_mod=masks.document(DOCUMENTS))
    same = layer.score_mod
    layer.half()
    assert layer.score_mod is same
    layer.to("meta")
    captured = (*layer.score_mod.captures, *layer.mask_mod.captures)
    assert len(captured) == 3  # slopes, and where documents begin and end
    assert {t.device.type for t in captured} == {"meta"}
    assert captured[0].dtype == torch.float32


def test_parameters_are_moved_by_their_owner() -> None:
    slopes = nn.Parameter(torch.ones(3))
    layer = FlexMultiheadAttention(12, 3, score_mod=lambda s, b, h, i, j: s - slopes[h])
    layer.to("meta")
    assert layer.score_mod.captures[0] is slopes
