"""What layers refuse, and in which words."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_tcgnn as tcg
import torch_tcgnn.nn as nn

X, EDGES = torch.randn(4, 3), torch.tensor([[0, 1, 2], [1, 2, 3]])
PAIR = (torch.randn(4, 3), torch.randn(2, 3))
INTO_TWO = torch.tensor([[0, 3], [0, 1]])


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: nn.SAGEConv(3, 2, aggr="median"), NotImplementedError, "aggr='median'.*torch_geometric.nn.SAGEConv"),
        (lambda: nn.SAGEConv(3, 2, aggr="lstm"), NotImplementedError, "aggr='lstm'"),
        (lambda: nn.GATConv(3, 2, aggr="mean"), NotImplementedError, "aggr='mean'.*torch_geometric.nn.GATConv"),
        (lambda: nn.GCNConv(3, 2, node_dim=0), NotImplementedError, "node_dim=0"),
        (lambda: nn.GCNConv(3, 2, decomposed_layers=2), NotImplementedError, "decomposed_layers=2"),
        (lambda: nn.GCNConv(3, 2, flow="up"), ValueError, "flow must be one of .* got 'up'"),
        (lambda: nn.GCNConv(3, 2, precision="fp8"), ValueError, "precision must be one of .* got 'fp8'"),
        (lambda: nn.GCNConv(3, 2, colour=1), TypeError, "unknown arguments colour"),
        (lambda: nn.GCNConv(3, 2, normalize=False, add_self_loops=True), ValueError, "normalize=False"),
        (lambda: nn.SAGEConv(-1, 2, project=True), ValueError, "in_channels=-1"),
        (lambda: nn.GINEConv(torch.nn.Identity(), edge_dim=2), ValueError, "in_features.*got Identity"),
        (lambda: nn.GCNConv(3, 2)(PAIR, INTO_TWO), ValueError, "one tensor, got tuple of 2"),
        (lambda: nn.GCNConv(3, 2)(X.long(), EDGES), TypeError, "floating point, got torch.int64"),
        (lambda: nn.SAGEConv(3, 2)(X.long(), EDGES), TypeError, "floating point, got torch.int64"),
        (lambda: nn.GCNConv(3, 2)(X, EDGES + 1), ValueError, r"node 4 in edge 2 \(3, 4\).* 4"),
        (lambda: nn.SAGEConv(3, 2)(X, EDGES + 1), ValueError, r"node 4 in edge 2 \(3, 4\).* 4"),
        (lambda: nn.GATConv(3, 2)(X, EDGES + 1), ValueError, r"node 4 in edge 2 \(3, 4\).* 4"),
        (lambda: nn.GCNConv(3, 2)(X, EDGES.float()), ValueError, "int32 or int64, got torch.float32"),
        (lambda: nn.GCNConv(3, 2)(X, "graph"), TypeError, "edge_index must be .* got str"),
        (lambda: nn.GCNConv(3, 2)(X, EDGES, torch.ones(5)), ValueError, r"edge_weight must have 3 values.*\(5,\)"),
        (lambda: nn.GraphConv(3, 2)(X, EDGES, torch.ones(3).long()), TypeError, "edge_weight.*torch.int64"),
        (lambda: nn.SAGEConv(3, 2)(PAIR, INTO_TWO, (4, 9)), ValueError, r"size \(4, 9\) says 9 targets.*\(2, 3\)"),
        (lambda: nn.SAGEConv(3, 2)((X, X, X), EDGES), ValueError, "pair .*got tuple of 3"),
        (
            lambda: nn.SAGEConv(3, 2, flow="target_to_source")(PAIR, INTO_TWO),
            NotImplementedError,
            "flow='target_to_source'.*torch_geometric.nn.SAGEConv",
        ),
        (lambda: nn.GINEConv(torch.nn.Identity())(X, EDGES), ValueError, "edge_attr must have 3 rows.*got None"),
        (
            lambda: nn.GINEConv(torch.nn.Identity())(X, EDGES, torch.ones(3, 2)),
            ValueError,
            "2 features, x has 3: set edge_dim",
        ),
        (lambda: nn.GATConv(3, 2)(X.expand(2, 4, 3), EDGES), ValueError, r"\[nodes, channels\], got \(2, 4, 3\)"),
        (lambda: nn.AGNNConv()(X.expand(2, 4, 3), EDGES), ValueError, r"\[nodes, channels\], got \(2, 4, 3\)"),
        (
            lambda: nn.GATConv(3, 2, edge_dim=2)(X, EDGES, torch.ones(3, 5)),
            ValueError,
            r"edge_attr must have shape \[3, 2\], got \(3, 5\)",
        ),
        (
            lambda: nn.GATConv(3, 2, edge_dim=2, fill_value="median")(X, EDGES, torch.ones(3, 2)),
            ValueError,
            "fill_value .* got 'median'",
        ),
        (lambda: nn.GATv2Conv(3, 2)(X, EDGES, torch.ones(3, 2)), ValueError, "needs edge_dim"),
        (lambda: nn.GATv2Conv(3, 2)((X, None), EDGES), ValueError, r"got \(source, None\)"),
        (lambda: nn.TransformerConv(3, 2)(X, EDGES, torch.ones(3, 2)), NotImplementedError, "edge_dim=None"),
        (lambda: nn.TransformerConv(3, 2, edge_dim=2)(X, EDGES), ValueError, "edge_dim=2, got None"),
        (
            lambda: nn.GATConv(3, 2)(X, torch.eye(4).to_sparse(), return_attention_weights=True),
            NotImplementedError,
            "return_attention_weights",
        ),
        (
            lambda: nn.SAGEConv(3, 2)(X, tcg.TCGraph.from_edge_index(EDGES, 9)),
            ValueError,
            "9 targets.*does not fit",
        ),
    ],
)
def test_misuse_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_edges_on_another_device_name_both():
    with pytest.raises(ValueError, match=r"meta.*cpu"):
        nn.SAGEConv(3, 2).to("meta")(X.to("meta"), EDGES)


def test_lazy_layer_loads_a_settled_state_and_a_settled_layer_a_lazy_one():
    settled, lazy = nn.GCNConv(3, 2), nn.GCNConv(-1, 2)
    lazy.load_state_dict(settled.state_dict())
    assert torch.equal(lazy(X, EDGES), settled(X, EDGES))
    again = nn.GCNConv(3, 2)
    again.load_state_dict(nn.GCNConv(-1, 2).state_dict())
    assert again(torch.randn(4, 5), EDGES).shape == (4, 2)


def test_lazy_layer_is_copied_before_it_is_settled():
    lazy = nn.GCNConv(-1, 2)
    other = copy.deepcopy(lazy)
    assert other(X, EDGES).shape == lazy(torch.randn(4, 7), EDGES).shape
    assert other.lin.weight.shape == (2, 3)
    assert lazy.lin.weight.shape == (2, 7)


def test_autocast_runs_in_its_type():
    with torch.autocast("cpu", torch.bfloat16):
        for layer in (nn.GCNConv(3, 2), nn.GATConv(3, 2), nn.SAGEConv(3, 2), nn.TransformerConv(3, 2)):
            assert layer(X, EDGES).isfinite().all()


def test_non_contiguous_features_give_the_same():
    wide = torch.randn(4, 6)
    for layer in (nn.GCNConv(3, 2), nn.GATConv(3, 2), nn.AGNNConv()):
        torch.testing.assert_close(layer(wide[:, ::2], EDGES), layer(wide[:, ::2].contiguous(), EDGES))
