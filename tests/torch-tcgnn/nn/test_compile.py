"""Layers inside ``torch.compile(fullgraph=True)``: on an edge list, on a translated graph, over many sizes."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
import torch_tcgnn as tcg
import torch_tcgnn.nn as nn
from torch._dynamo.testing import CompileCounterWithBackend

N, E, F, D = 12, 60, 6, 3
RNG = torch.Generator().manual_seed(0)
EDGES = torch.randint(0, N, (2, E), generator=RNG)
EDGES[:, 5] = EDGES[:, 6]
EDGES[:, :2] = torch.tensor([[1, 2], [1, 2]])
X, WEIGHT, ATTR = (torch.rand(s, generator=RNG) for s in ((N, F), (E,), (E, D)))

LAYERS = {
    "GCN": (lambda: nn.GCNConv(F, 4), ()),
    "GCN weighted": (lambda: nn.GCNConv(F, 4), (WEIGHT,)),
    "GIN": (lambda: nn.GINConv(torch.nn.Linear(F, 3)), ()),
    "GINE": (lambda: nn.GINEConv(torch.nn.Linear(F, 3), edge_dim=D), (ATTR,)),
    "SAGE": (lambda: nn.SAGEConv(F, 4, aggr=["mean", "max"]), ()),
    "GraphConv": (lambda: nn.GraphConv(F, 4), (WEIGHT,)),
    "SG": (lambda: nn.SGConv(F, 4, K=2), ()),
    "GAT": (lambda: nn.GATConv(F, 4, heads=2, edge_dim=D), (ATTR,)),
    "GAT reversed": (lambda: nn.GATConv(F, 4, edge_dim=D, flow="target_to_source"), (ATTR,)),
    "GATv2": (lambda: nn.GATv2Conv(F, 4, heads=2, edge_dim=D), (ATTR,)),
    "AGNN": (lambda: nn.AGNNConv(), ()),
    "Transformer": (lambda: nn.TransformerConv(F, 4, heads=2, edge_dim=D), (ATTR,)),
}


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


CASES = [(name, "edge list") for name in LAYERS] + [(name, "TCGraph") for name in LAYERS if "reversed" not in name]


@pytest.mark.parametrize("name, graph", [*CASES, ("GCN", "TCGraph used before"), ("GAT", "TCGraph used before")])
def test_compiled_layer_equals_the_eager_one(name, graph):
    make, extra = LAYERS[name]
    layer = make()
    adj = EDGES if graph == "edge list" else tcg.TCGraph.from_edge_index(EDGES, N)
    if graph == "TCGraph used before":
        layer(X.clone().requires_grad_(), adj, *extra).sum().backward()
        layer.zero_grad()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    results = []
    for call, g in ((compiled, adj), (layer, EDGES)):
        x = X.clone().requires_grad_()
        out = call(x, g, *extra)
        layer.zero_grad()
        out.square().sum().backward()
        results.append([out, x.grad, *(p.grad.clone() for p in layer.parameters())])
    for got, expected in zip(*results):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_compiled_layer_reads_the_weights_of_a_graph():
    layer, graph = nn.GCNConv(F, 4), tcg.TCGraph.from_edge_index(EDGES, N, WEIGHT)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(X, graph), layer(X, EDGES, WEIGHT), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name, translated", [("GCN", False), ("GAT", True), ("SAGE", False)])
def test_twenty_batch_sizes_compile_at_most_twice(name, translated):
    layer = {"GCN": nn.GCNConv(F, 4), "GAT": nn.GATConv(F, 4, heads=2), "SAGE": nn.SAGEConv(F, 4)}[name]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for size in range(20):
        nodes, edges = 10 + 3 * size, 40 + 7 * size
        edge_index = torch.randint(0, nodes, (2, edges), generator=RNG)
        adj = tcg.TCGraph.from_edge_index(edge_index, nodes) if translated else edge_index
        out = compiled(torch.ones(nodes, F, requires_grad=True), adj)
        out.sum().backward()
    torch.testing.assert_close(out, layer(torch.ones(nodes, F), edge_index), rtol=1e-5, atol=1e-5)
    assert 1 <= counter.frame_count <= 2


def test_attention_weights_over_replaced_loops_break_the_graph_but_are_right():
    layer = nn.GATConv(F, 4)
    out, (edges, alpha) = torch.compile(layer, backend="eager")(X, EDGES, return_attention_weights=True)
    expected, (my_edges, my_alpha) = layer(X, EDGES, return_attention_weights=True)
    assert torch.equal(edges, my_edges)
    torch.testing.assert_close((out, alpha), (expected, my_alpha), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layer", [nn.GCNConv, nn.SAGEConv, nn.GATConv], ids=lambda layer: layer.__name__)
@pytest.mark.parametrize("side", [0, 1], ids=["source", "target"])
@pytest.mark.parametrize("node", [-3, 6, 2**33], ids=str)
def test_ids_out_of_range_are_refused_in_a_compiled_layer(layer, side, node):
    """Not read from memory that is not there, nor cut down to another node's id."""
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    compiled = torch.compile(layer(3, 2), fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(6, 3), edges).isfinite().all()
    edges[side, 2] = node
    with pytest.raises(RuntimeError, match=r"edge_index holds a node outside \[0, num_nodes\)"):
        compiled(torch.ones(6, 3), edges)
