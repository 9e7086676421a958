"""Sums, extrema and products never hold a row of features for every edge: memory follows edges, not edges × width."""

import pytest
import torch
import torch_tcgnn as tcg

NODES, EDGES, WIDTH = 2_000, 600_000, 128


@pytest.fixture(scope="module")
def graph() -> tcg.TCGraph:
    g = tcg.TCGraph.from_edge_index(torch.randint(NODES, (2, EDGES), generator=torch.manual_seed(0)), NODES)
    g.t().operands()
    return g


CALLS = {
    "sum": lambda g, x, w: tcg.spmm(g, x),
    **{f"weighted {r}": lambda g, x, w, r=r: tcg.spmm(g, x, w, reduce=r) for r in ("sum", "mean", "max", "min")},
    "sddmm": lambda g, x, w: tcg.sddmm(g, x, x),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_step_holds_few_numbers_an_edge(graph, peak_bytes, name):
    x, w = torch.randn(NODES, WIDTH, requires_grad=True), torch.rand(EDGES, requires_grad=True)
    of_nodes = 12 * x.numel() * 4
    assert peak_bytes(lambda: CALLS[name](graph, x, w).sum().backward()) < 10 * EDGES * 4 + of_nodes
