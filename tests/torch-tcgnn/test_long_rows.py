"""Rows of very many entries: a sum that adds them one by one to a float32 number drifts away."""

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn import reference
from torch_tcgnn.kernels.cpu import spmm as kernel

HUB, NODES = 1_000_000, 1_000
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", params=DEVICES)
def hub(request) -> tcg.TCGraph:
    """A million edges into node 0."""
    source = torch.arange(HUB, device=request.param) % NODES
    return tcg.TCGraph.from_edge_index(torch.stack([source, torch.zeros_like(source)]), NODES)


CALLS = {
    "sum": lambda g, x, w: tcg.spmm(g, x)[0] / HUB,
    "weighted": lambda g, x, w: tcg.spmm(g, x, w)[0] / HUB,
    "weights by head": lambda g, x, w: tcg.spmm(g, x[:, None], w[:, None])[0] / HUB,
    "mean": lambda g, x, w: tcg.spmm(g, x, reduce="mean")[0],
    "segment": lambda g, x, w: tcg.segment(g, tcg.gather_src(g, x))[0] / HUB,
    "attention": lambda g, x, w: tcg.gat_attention(g, x[:, None], 0 * x[:, :1], 0 * x[:, :1])[0],
    "gradient": lambda g, x, w: torch.autograd.grad(tcg.spmm(g.t(), x).sum() * 0.1, x)[0][0] / HUB,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_million_equal_values_average_to_that_value(hub, name):
    x = torch.full((NODES, 2), 0.1, device=hub.device, requires_grad=True)
    out = CALLS[name](hub, x, torch.ones(HUB, device=hub.device)).detach().double()
    bound = 2**-20 + 2**-22 * HUB**0.5
    assert (out / x.detach()[0, 0].double() - 1).abs().max() <= bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("weight", [None, (), (2,)], ids=["unweighted", "weighted", "weights by head"])
def test_rows_around_the_longest_that_is_summed_at_once(monkeypatch, dtype, weight):
    """Integers, in unsorted edges: every sum is exact, whatever the pieces."""
    monkeypatch.setattr(kernel, "LONG", 12)
    monkeypatch.setattr(kernel, "PIECE", 5)
    lengths = torch.tensor([12, 0, 13, 30, 1, 11, 60, 14, 0])
    target = torch.arange(9).repeat_interleave(lengths)[torch.randperm(141, generator=torch.manual_seed(0))]
    source = torch.randint(9, (141,))
    x = torch.randint(-9, 9, (9, 2, 3) if weight else (9, 6)).to(dtype)
    w = None if weight is None else torch.randint(-3, 3, (141, *weight)).to(dtype)
    g = tcg.TCGraph.from_edge_index(torch.stack([source, target]), 9)
    assert torch.equal(tcg.spmm(g, x, w), reference.spmm(target, source, x, w, 9))
    assert kernel.long_rows(g.adjacency.rowptr).row.tolist() == [2, 3, 6, 7]
    values = torch.randint(-9, 9, (141, 2)).to(dtype)
    assert torch.equal(tcg.segment(g, values), reference.segment_sum(target, values, 9))


def test_long_rows_are_found_once_and_forgotten_with_the_graph():
    rowptr = torch.tensor([0, 3, 5_000])
    found = kernel.long_rows(rowptr)
    assert found is kernel.long_rows(rowptr)
    before = len(kernel._LONG_ROWS)
    del rowptr
    assert len(kernel._LONG_ROWS) == before - 1
    assert kernel.long_rows(torch.tensor([0, 3, 4_099])) is None
