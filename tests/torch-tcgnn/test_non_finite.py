"""NaN and Inf of one node, edge or head stay with it and what it points to; the CPU kernels, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn import nn

N, E, F, BAD, HEAD, EDGE = 60, 300, 4, 5, 1, 7
HEADS = (3, 17)  # by one matrix for few heads, one by one for many
VALUES = (float("nan"), float("inf"), float("-inf"))
RANDOM = torch.Generator().manual_seed(0)
EDGES = torch.randint(0, N - 8, (2, E), generator=RANDOM)
EDGES[0, :3], EDGES[1, 3:6] = BAD, BAD  # edges out of the bad node, and into it
GRAPH = tcg.TCGraph.from_edge_index(EDGES, N)
REACHED = sorted(set(EDGES[1][EDGES[0] == BAD].tolist()))
REACHING = sorted(set(EDGES[0][EDGES[1] == BAD].tolist()))
INTO = int(EDGES[1, EDGE])


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def spoilt(t: torch.Tensor, row: int, value: float) -> torch.Tensor:
    t = t.clone()
    t[row, HEAD] = value
    return t


def places(t: torch.Tensor) -> set[tuple[int, int]]:
    """Rows and heads that hold something not finite."""
    bad = ~t.isfinite()
    return set(map(tuple, (bad.any(-1) if bad.dim() == 3 else bad).nonzero().tolist()))


def calls(heads: int, value: float):
    """Name, call, and the rows where ``HEAD`` may be spoilt."""
    x, a, el = draw(N, heads, F), draw(N, heads), draw(E, heads)
    ed, att = draw(E, heads, F), draw(heads, F)
    bx, ba = spoilt(x, BAD, value), spoilt(a, BAD, value)
    bel, bed = spoilt(el, EDGE, value), spoilt(ed, EDGE, value)
    one = [BAD]
    yield "gat value", lambda: tcg.gat_attention(GRAPH, bx, a, a), REACHED
    yield "gat source", lambda: tcg.gat_attention(GRAPH, x, ba, a), REACHED
    yield "gat target", lambda: tcg.gat_attention(GRAPH, x, a, ba), one
    yield "gat edge", lambda: tcg.gat_attention(GRAPH, x, a, a, edge_logit=bel), [INTO]
    yield "gatv2 left", lambda: tcg.gatv2_attention(GRAPH, bx, x, att), REACHED
    yield "gatv2 right", lambda: tcg.gatv2_attention(GRAPH, x, bx, att), one
    yield "gatv2 edge", lambda: tcg.gatv2_attention(GRAPH, x, x, att, edge=bed), [INTO]
    yield "dot query", lambda: tcg.dot_attention(GRAPH, bx, x, x), one
    yield "dot key", lambda: tcg.dot_attention(GRAPH, x, bx, x), REACHED
    yield "dot value", lambda: tcg.dot_attention(GRAPH, x, x, bx), REACHED
    yield "dot edge", lambda: tcg.dot_attention(GRAPH, x, x, x, edge=bed), [INTO]
    yield "cosine", lambda: tcg.cosine_attention(GRAPH, bx), sorted({*REACHED, BAD})
    for reduce in ("sum", "mean", "max", "min"):
        yield f"spmm {reduce}", lambda r=reduce: tcg.spmm(GRAPH, bx, reduce=r), REACHED
        yield f"spmm weight {reduce}", lambda r=reduce: tcg.spmm(GRAPH, x, bel, reduce=r), [INTO]
        yield f"segment {reduce}", lambda r=reduce: tcg.segment(GRAPH, bel, r), [INTO]
    yield "softmax", lambda: tcg.edge_softmax(GRAPH, bel), (EDGES[1] == INTO).nonzero().view(-1).tolist()
    yield "sddmm a", lambda: tcg.sddmm(GRAPH, bx, x), (EDGES[1] == BAD).nonzero().view(-1).tolist()
    yield "sddmm b", lambda: tcg.sddmm(GRAPH, x, bx), (EDGES[0] == BAD).nonzero().view(-1).tolist()


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("value", VALUES)
def test_a_spoilt_row_reaches_only_its_neighbours_and_its_head(heads, value):
    for name, call, rows in calls(heads, value):
        assert places(call()) <= {(row, HEAD) for row in rows}, name
        if value != value:
            assert places(call()), f"{name}: NaN must not vanish"


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("value", VALUES[:2])
def test_a_spoilt_gradient_reaches_only_its_neighbours_and_its_head(heads, value):
    def leaf(*shape: int) -> torch.Tensor:
        return draw(*shape).requires_grad_()

    x, y, z, a, b = leaf(N, heads, F), leaf(N, heads, F), leaf(N, heads, F), leaf(N, heads), leaf(N, heads)
    el, ed, att = leaf(E, heads), leaf(E, heads, F), draw(heads, F)
    into = (EDGES[1] == BAD).nonzero().view(-1).tolist()
    calls = {
        "gat": (tcg.gat_attention(GRAPH, x, a, b, edge_logit=el), {x: REACHING, a: REACHING, b: [BAD], el: into}),
        "gatv2": (tcg.gatv2_attention(GRAPH, x, y, att, edge=ed), {x: REACHING, y: [BAD], ed: into}),
        "dot": (tcg.dot_attention(GRAPH, x, y, z, edge=ed), {x: [BAD], y: REACHING, z: REACHING, ed: into}),
        "spmm": (tcg.spmm(GRAPH, x, el), {x: REACHING, el: into}),
        "max": (tcg.spmm(GRAPH, x, el, reduce="max"), {x: REACHING, el: into}),
    }
    for name, (out, allowed) in calls.items():
        grads = torch.autograd.grad(out, list(allowed), spoilt(draw(*out.shape), BAD, value))
        for rows, grad in zip(allowed.values(), grads):
            assert places(grad) <= {(row, HEAD) for row in rows}, name
        assert any(places(grad) for grad in grads), name


@pytest.mark.parametrize("layer", [nn.GATConv, nn.GATv2Conv, nn.TransformerConv])
@pytest.mark.parametrize("value", VALUES[:2])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_spoilt_head_of_a_layer_leaves_the_others(layer, value, compiled):
    conv = layer(F, 3, heads=2)
    with torch.no_grad():
        for name, parameter in conv.named_parameters():
            if name.startswith("lin") and parameter.shape[0] == 6:
                parameter[:3] = value  # the maps of head 0
    run = torch.compile(conv, backend="aot_eager", fullgraph=True) if compiled else conv
    out = run(draw(N, F), EDGES).view(N, 2, 3)
    assert out[:, 1].isfinite().all()
    assert not out[:, 0].isfinite().all()


LAYERS = {
    "GCN": lambda: nn.GCNConv(F, 6), "GCN narrow": lambda: nn.GCNConv(F, 2), "SAGE": lambda: nn.SAGEConv(F, 6),
    "SAGE max": lambda: nn.SAGEConv(F, 6, aggr=["max", "min"]), "GIN": lambda: nn.GINConv(torch.nn.Linear(F, 2)),
    "GAT": lambda: nn.GATConv(F, 3, 2), "GATv2": lambda: nn.GATv2Conv(F, 3, 2), "AGNN": nn.AGNNConv,
    "Transformer": lambda: nn.TransformerConv(F, 3, 2), "GraphConv": lambda: nn.GraphConv(F, 2),
    "SG": lambda: nn.SGConv(F, 2),
}  # fmt: skip


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("value", VALUES[:2])
def test_a_spoilt_node_reaches_only_its_neighbours_through_a_layer(make, value):
    bad = ~make()(spoilt(draw(N, F), BAD, value), EDGES).isfinite()
    rows = set(bad.any(1).nonzero().view(-1).tolist())
    assert rows <= {*REACHED, BAD}
    assert rows
