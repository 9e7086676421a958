"""Under `torch.use_deterministic_algorithms(True)` every operator and layer runs, forward and backward, unchanged.

In that mode PyTorch refuses operators that add in no fixed order, and fills what is allocated with NaN: an element that
a kernel does not write would show.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch_tcgnn as tcg
from torch import Tensor
from torch_tcgnn import nn

NODES, EDGES, HEADS, WIDTH, EDGE_DIM = 45, 700, 2, 5, 3
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
REDUCES = ("sum", "mean", "max", "min")


class Inputs:
    """A directed graph with duplicates, loops, empty rows and a long row; features and weights, on one device."""

    def __init__(self, device: str) -> None:
        rng = torch.Generator().manual_seed(0)
        edge_index = torch.randint(0, NODES - 4, (2, EDGES), generator=rng)
        edge_index[1, :300] = 7
        self.edge_index = edge_index.to(device)
        shapes = {
            "x": (NODES, HEADS, WIDTH), "flat": (NODES, WIDTH), "weight": (EDGES, HEADS), "one": (EDGES,),
            "att": (HEADS, WIDTH), "per_edge": (EDGES, HEADS, WIDTH), "attr": (EDGES, EDGE_DIM),
        }  # fmt: skip
        made = {name: torch.rand(shape, generator=rng) + 0.1 for name, shape in shapes.items()}
        self.tensors = {name: t.to(device).requires_grad_() for name, t in made.items()}

    def __getattr__(self, name: str) -> Tensor:
        return self.tensors[name]

    def graph(self) -> tcg.TCGraph:
        return tcg.TCGraph.from_edge_index(self.edge_index, NODES)


def attend(i: Inputs, g: tcg.TCGraph, **options: object) -> Tensor:
    return tcg.gat_attention(g, i.x, i.x.sum(-1), i.x.mean(-1), edge_logit=i.weight, **options)


CALLS: dict[str, Callable[[Inputs, tcg.TCGraph], Tensor]] = {
    **{f"spmm {r}": lambda i, g, r=r: tcg.spmm(g, i.flat, i.one, reduce=r) for r in REDUCES},
    "spmm, unweighted": lambda i, g: tcg.spmm(g, i.flat),
    "spmm, heads": lambda i, g: tcg.spmm(g, i.x, i.weight),
    "sddmm": lambda i, g: tcg.sddmm(g, i.flat, i.flat),
    "sddmm, heads": lambda i, g: tcg.sddmm(g, i.x, i.x),
    "edge_softmax": lambda i, g: tcg.edge_softmax(g, i.weight),
    **{f"segment {r}": lambda i, g, r=r: tcg.segment(g, i.weight, r) for r in REDUCES},
    "gather_src": lambda i, g: tcg.gather_src(g, i.x),
    "gather_dst": lambda i, g: tcg.gather_dst(g, i.x),
    "gat": attend,
    "gat, dropout": lambda i, g: attend(i, g, dropout=0.5, training=True),
    "gat, weights": lambda i, g: attend(i, g, return_attention=True)[1],
    "gatv2": lambda i, g: tcg.gatv2_attention(g, i.x, i.x * 2, i.att, edge=i.per_edge),
    "dot": lambda i, g: tcg.dot_attention(g, i.x, i.x * 2, i.x * 3, edge=i.per_edge),
    "cosine": lambda i, g: tcg.cosine_attention(g, i.flat, i.one[0]),
    "normalised": lambda i, g: tcg.spmm(g.with_weight(i.one).gcn_norm(), i.flat),
    "other order": lambda i, g: tcg.spmm(g.in_storage_order(), i.flat),
}
LAYERS = {
    "GCN": (lambda: nn.GCNConv(WIDTH, 4), ("one",)),
    "GIN": (lambda: nn.GINConv(torch.nn.Linear(WIDTH, 3), train_eps=True), ()),
    "GINE": (lambda: nn.GINEConv(torch.nn.Linear(WIDTH, 3), edge_dim=EDGE_DIM), ("attr",)),
    "SAGE": (lambda: nn.SAGEConv(WIDTH, 4, aggr=["mean", "max"]), ()),
    "GraphConv": (lambda: nn.GraphConv(WIDTH, 4, aggr="max"), ("one",)),
    "SG": (lambda: nn.SGConv(WIDTH, 4, K=2), ("one",)),
    "GAT": (lambda: nn.GATConv(WIDTH, 4, heads=2, edge_dim=EDGE_DIM, dropout=0.3), ("attr",)),
    "GATv2": (lambda: nn.GATv2Conv(WIDTH, 4, heads=2, edge_dim=EDGE_DIM), ("attr",)),
    "AGNN": (lambda: nn.AGNNConv(), ()),
    "Transformer": (lambda: nn.TransformerConv(WIDTH, 4, heads=2, edge_dim=EDGE_DIM), ("attr",)),
}


def in_that_mode(run: Callable[[], list[Tensor]]) -> list[Tensor]:
    """What ``run`` gives with deterministic algorithms; a warning about them is an error."""
    torch.use_deterministic_algorithms(True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*determinis.*")
            return run()
    finally:
        torch.use_deterministic_algorithms(False)


def gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    grads = torch.autograd.grad(out.square().sum(), inputs, allow_unused=True)
    return [out.detach(), *(g for g in grads if g is not None)]


def check(run: Callable[[], list[Tensor]]) -> None:
    for plain, first, second in zip(run(), in_that_mode(run), in_that_mode(run), strict=True):
        assert first.isfinite().all()
        assert torch.equal(first, second)
        torch.testing.assert_close(first, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CALLS)
def test_every_operator(name, device):
    inputs = Inputs(device)

    def run() -> list[Tensor]:
        torch.manual_seed(0)
        return gradients(CALLS[name](inputs, inputs.graph()), list(inputs.tensors.values()))

    check(run)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reorder", ["none", "degree", "rcm", "lsh", "community"])
def test_every_part_of_a_graph(reorder, device):
    if reorder == "rcm":
        pytest.importorskip("scipy")
    edge_index = Inputs(device).edge_index

    def run() -> list[Tensor]:
        g = tcg.TCGraph.from_edge_index(edge_index, NODES, reorder=reorder)
        return [*g.blocks.tensors(), *g.t().operands(), g.with_self_loops(2.0).to_edge_index(), g.gcn_norm().weight]

    check(run)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer(name, device):
    make, extra = LAYERS[name]
    inputs, layer = Inputs(device), make().to(device)

    def run() -> list[Tensor]:
        torch.manual_seed(0)
        x, more = inputs.flat, [inputs.tensors[e] for e in extra]
        return gradients(layer(x, inputs.edge_index.clone(), *more), [x, *more, *layer.parameters()])

    check(run)


def test_in_that_mode_memory_is_filled_with_nan():
    """What the tests above rely on to see an element that was not written."""
    (found,) = in_that_mode(lambda: [torch.empty(3)])
    assert found.isnan().all()
