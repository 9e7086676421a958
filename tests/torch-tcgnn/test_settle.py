"""Building and CUDA graphs: what a capture cannot hold is refused in words, before anything is asked of the device."""

from __future__ import annotations

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn import settle

pytest.importorskip("triton")  # one of the places that build imports it
EDGES = torch.tensor([[0, 1, 2], [1, 2, 1]])


@pytest.fixture
def building(monkeypatch) -> list[str]:
    """Notes each check before building, and each wait after it."""
    seen: list[str] = []
    for module in ("graph", "views", "cache", "nn.lookup", "kernels.triton.plans"):
        monkeypatch.setattr(f"torch_tcgnn.{module}.check_not_captured", lambda device: seen.append("check"))
        monkeypatch.setattr(f"torch_tcgnn.{module}.settle", lambda device: seen.append("settle"))
    return seen


PARTS = {
    "transpose": lambda g: g.t(),
    "blocks": lambda g: g.blocks,
    "work list": lambda g: g.views.plan,
}


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_a_graph_are_checked_once_and_waited_for(building, part):
    g = tcg.TCGraph.from_edge_index(EDGES, 3)
    building.clear()
    PARTS[part](g)
    assert building[0] == "check"
    assert building[-1] == "settle"
    building.clear()
    PARTS[part](g)
    assert building == []


def test_a_graph_from_the_cache_is_waited_for(building):
    cache = tcg.TCGraphCache()
    cache.graph(EDGES, 3)
    assert building == ["check", "settle"]
    cache.graph(EDGES, 3)
    assert building == ["check", "settle"]


def test_what_a_layer_keeps_with_a_graph_is_waited_for(building):
    g, layer = tcg.TCGraph.from_edge_index(EDGES, 3), tcg.nn.GCNConv(2, 2)
    layer(torch.ones(3, 2), g)
    assert building[0] == "check"
    assert building.count("settle") == building.count("check") > 0
    building.clear()
    layer(torch.ones(3, 2), g)
    assert building == []


def test_capture_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    settle.check_not_captured(torch.device("cpu"))
    with pytest.raises(RuntimeError, match="before a CUDA graph is captured: run the operator once"):
        settle.check_not_captured(torch.device("cuda"))
