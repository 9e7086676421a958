"""Graphs derived in inference mode are used in training afterwards: nothing of them is an inference tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch_tcgnn as tcg

UNSORTED = torch.tensor([[0, 4, 1, 1, 3, 0, 2, 2], [3, 0, 2, 2, 3, 1, 0, 4]])
SORTED = UNSORTED[:, (UNSORTED[1] * 5 + UNSORTED[0]).argsort()]
DERIVE: dict[str, Callable[[tcg.TCGraph], tcg.TCGraph]] = {
    "gcn_norm": lambda g: g.gcn_norm(),
    "gcn_norm, no loops": lambda g: g.gcn_norm(add_self_loops=False),
    "with_self_loops": lambda g: g.with_self_loops(2.0),
    "with_self_loops, dropped": lambda g: g.with_self_loops(0.5, remaining=False),
    "in_storage_order": lambda g: g.in_storage_order(),
    "all three": lambda g: g.with_self_loops(0.5).gcn_norm(add_self_loops=False).in_storage_order(),
}


def graph(edge_index: torch.Tensor, weighted: bool) -> tcg.TCGraph:
    weight = torch.linspace(0.5, 2.0, 8) if weighted else None
    return tcg.TCGraph.from_edge_index(edge_index, 5, weight)


@pytest.mark.parametrize("edge_index", [UNSORTED, SORTED], ids=["unsorted", "sorted"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("built", ["before", "inside"])
@pytest.mark.parametrize("name", DERIVE)
def test_derived_in_inference_mode_then_trained_with(name, built, weighted, edge_index):
    outside = graph(edge_index, weighted)
    with torch.inference_mode():
        g = DERIVE[name](outside if built == "before" else graph(edge_index, weighted))
    expected = DERIVE[name](outside)
    x = torch.arange(10.0).view(5, 2).requires_grad_()
    grads = []
    for one in (g, expected):
        out = tcg.spmm(one, tcg.spmm(one, x))
        grads.append(torch.autograd.grad(out.square().sum(), x)[0])
    assert torch.equal(*grads)
    parts = [t for t in (g.weight, *g.adjacency.tensors(), *g.t().adjacency.tensors()) if t is not None]
    assert not any(t.is_inference() for t in parts)


@pytest.mark.parametrize("name", DERIVE)
def test_no_gradient_is_recorded_there(name):
    weight = torch.linspace(0.5, 2.0, 8).requires_grad_()
    g = tcg.TCGraph.from_edge_index(UNSORTED, 5, weight)
    with torch.inference_mode():
        assert not DERIVE[name](g).weight.requires_grad
    assert DERIVE[name](g).weight.requires_grad
