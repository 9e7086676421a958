"""Layers on graphs small enough to compute by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch_tcgnn as tcg

PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
LAYERS = {
    "GCNConv": lambda: tcg.nn.GCNConv(3, 2),
    "SAGEConv": lambda: tcg.nn.SAGEConv(3, 2),
    "GraphConv": lambda: tcg.nn.GraphConv(3, 2),
    "SGConv": lambda: tcg.nn.SGConv(3, 2),
    "GINConv": lambda: tcg.nn.GINConv(torch.nn.Linear(3, 2)),
    "AGNNConv": lambda: tcg.nn.AGNNConv(),
    "GATConv": lambda: tcg.nn.GATConv(3, 2, heads=2),
    "GATv2Conv": lambda: tcg.nn.GATv2Conv(3, 2, heads=2),
    "TransformerConv": lambda: tcg.nn.TransformerConv(3, 2, heads=2),
}


def unit(layer: torch.nn.Module) -> torch.nn.Module:
    """Identity in place of the matrix, no bias."""
    with torch.no_grad():
        layer.lin.weight.copy_(torch.eye(*layer.lin.weight.shape))
        if layer.bias is not None:
            layer.bias.zero_()
    return layer


def test_normalised_path_of_three():
    s = 1 / math.sqrt(6)
    expected = torch.tensor([[1 / 2, s, 0], [s, 1 / 3, s], [0, s, 1 / 2]])
    torch.testing.assert_close(unit(tcg.nn.GCNConv(3, 3))(torch.eye(3), PATH), expected)
    hops = tcg.nn.SGConv(3, 3, K=2, bias=False)
    hops.lin.weight.data.copy_(torch.eye(3))
    torch.testing.assert_close(hops(torch.eye(3), PATH), expected @ expected)


def test_existing_loop_keeps_its_weight_and_the_last_wins():
    edges = torch.tensor([[0, 0, 0, 1], [0, 0, 1, 0]])
    weight = torch.tensor([7.0, 3.0, 1.0, 1.0])
    out = unit(tcg.nn.GCNConv(2, 2))(torch.eye(2), edges, weight)
    a, b = 3 + 1, 1 + 1  # degrees: loop 3 + edge, loop 1 + edge
    torch.testing.assert_close(out, torch.tensor([[3 / a, 1 / math.sqrt(a * b)], [1 / math.sqrt(a * b), 1 / b]]))


def test_only_the_last_of_several_loops_gets_a_gradient():
    loops = torch.tensor([7.0, 3.0], requires_grad=True)
    edges, weight = torch.tensor([[0, 0, 1], [0, 0, 0]]), torch.cat([loops, torch.ones(1)])
    unit(tcg.nn.GCNConv(1, 1))(torch.tensor([[2.0], [1.0]]), edges, weight)[0].backward()
    assert loops.grad[0] == 0.0
    assert loops.grad[1] != 0.0


def test_gat_node_with_two_neighbours():
    conv = tcg.nn.GATConv(1, 1, add_self_loops=False, bias=False)
    with torch.no_grad():
        conv.lin.weight.fill_(1.0)
        conv.att_src.fill_(1.0)
        conv.att_dst.fill_(1.0)
    x = torch.tensor([[1.0], [-2.0], [0.5]])
    out, (_, alpha) = conv(x, torch.tensor([[0, 1], [2, 2]]), return_attention_weights=True)
    torch.testing.assert_close(alpha.view(-1), torch.tensor([0.858149, 0.141851]), atol=1e-6, rtol=0)
    torch.testing.assert_close(out.view(-1), torch.tensor([0, 0, 0.858149 - 2 * 0.141851]), atol=1e-6, rtol=0)


def test_agnn_of_four_nodes():
    x = torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0], [0.0, 0.0]])
    out = tcg.nn.AGNNConv()(x, torch.tensor([[1, 2, 3], [0, 0, 1]]))
    expected = torch.tensor([[1.4745861, 2.2649040], [0, 1.4621172], [1, 0], [0, 0]])
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)


def test_agnn_without_temperature_is_the_mean():
    conv = tcg.nn.AGNNConv(add_self_loops=False)
    conv.beta.data.zero_()
    x = torch.randn(3, 4)
    torch.testing.assert_close(conv(x, PATH)[1], (x[0] + x[2]) / 2)


def test_transformer_without_query_is_the_mean_of_values():
    conv = tcg.nn.TransformerConv(4, 4, root_weight=False)
    conv.lin_query.weight.data.zero_()
    conv.lin_query.bias.data.zero_()
    x = torch.randn(3, 4)
    values = conv.lin_value(x)
    torch.testing.assert_close(conv(x, PATH)[1], (values[0] + values[2]) / 2)


def test_attention_over_equal_features_returns_them_and_isolated_nodes_zero():
    x = torch.ones(4, 3)
    torch.testing.assert_close(tcg.nn.AGNNConv(add_self_loops=False)(x, PATH)[:3], x[:3])
    gat = tcg.nn.GATConv(3, 2, add_self_loops=False)
    out = gat(x, PATH)
    torch.testing.assert_close(out[:3], gat.lin(x)[:3])
    assert (out[3] == 0).all()


def test_sage_mean_over_no_neighbours_is_zero():
    conv = tcg.nn.SAGEConv(2, 2, root_weight=False, bias=False)
    assert (conv(torch.randn(3, 2), torch.tensor([[0], [1]]))[[0, 2]] == 0).all()


@pytest.mark.parametrize("name", LAYERS)
def test_graph_without_edges_or_nodes(name):
    layer = LAYERS[name]()
    for nodes in (0, 1, 5):
        x = torch.randn(nodes, 3, requires_grad=True)
        out = layer(x, torch.empty(2, 0, dtype=torch.long))
        assert out.shape[0] == nodes
        out.sum().backward()
        assert out.isfinite().all()


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_features_reach_only_neighbours(name, bad):
    x = torch.randn(5, 3)
    x[3] = bad
    out = LAYERS[name]()(x, torch.tensor([[0, 1, 2, 3], [1, 2, 0, 4]]))
    assert out[:3].isfinite().all()
    assert not out[3:].isfinite().all()


@pytest.mark.parametrize("name", LAYERS)
def test_order_of_edges_does_not_matter(name):
    layer = LAYERS[name]()
    edges = torch.randint(0, 9, (2, 40), generator=torch.Generator().manual_seed(0))
    x = torch.randn(9, 3)
    shuffled = edges[:, torch.randperm(40, generator=torch.Generator().manual_seed(1))]
    torch.testing.assert_close(layer(x, edges), layer(x, shuffled), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_every_format_of_one_graph_gives_one_result(name):
    layer = LAYERS[name]()
    edges = torch.tensor([[0, 1, 1, 2, 3], [1, 0, 2, 1, 0]])
    x = torch.randn(4, 3)
    dense = torch.zeros(4, 4).index_put((edges[1], edges[0]), torch.tensor(1.0))
    expected = layer(x, edges)
    for adj in (edges.int(), dense.to_sparse_csr(), dense.to_sparse(), tcg.TCGraph.from_edge_index(edges, 4)):
        torch.testing.assert_close(layer(x, adj), expected, rtol=1e-5, atol=1e-6)


def test_dropout_acts_in_training_only_and_follows_the_seed():
    conv, x = tcg.nn.GATConv(3, 2, dropout=0.5), torch.randn(3, 3)
    torch.manual_seed(0)
    first = conv(x, PATH)
    torch.manual_seed(0)
    assert torch.equal(conv(x, PATH), first)
    assert not torch.equal(conv.eval()(x, PATH), first)
