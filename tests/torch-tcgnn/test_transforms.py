"""`ToTCGraph` on PyG's data, batches and loaders."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch_tcgnn as tcg

pyg_data = pytest.importorskip("torch_geometric.data")
EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])


def data(**extra):
    return pyg_data.Data(x=torch.randn(4, 3), edge_index=EDGES, **extra)


def test_graph_is_stored_with_the_datas_size_and_weights():
    graph = tcg.transforms.ToTCGraph()(data(edge_weight=torch.tensor([[1.0], [2.0], [3.0]]))).tcg
    assert (graph.num_rows, graph.num_cols) == (4, 4)
    assert graph.weight.tolist() == [1.0, 2.0, 3.0]
    assert tcg.transforms.ToTCGraph(weight=None)(data(edge_weight=torch.ones(3))).tcg.weight is None


def test_layers_take_the_stored_graph():
    d, conv = tcg.transforms.ToTCGraph()(data()), tcg.nn.GATConv(3, 2)
    torch.testing.assert_close(conv(d.x, d.tcg), conv(d.x, d.edge_index))


def test_edge_index_may_be_dropped_and_the_data_moved_and_pickled():
    d = tcg.transforms.ToTCGraph(remove_edge_index=True)(data())
    assert "edge_index" not in d
    assert d.to("meta").tcg.device.type == "meta"
    d = pickle.loads(pickle.dumps(tcg.transforms.ToTCGraph()(data())))
    assert torch.equal(d.tcg.to_edge_index(), EDGES)


def test_sparse_adjacency():
    d = pyg_data.Data(x=torch.randn(3, 3), adj_t=torch.eye(3).to_sparse_csr())
    assert tcg.transforms.ToTCGraph()(d).tcg.num_edges == 3


def test_every_edge_type_of_heterogeneous_data():
    d = pyg_data.HeteroData()
    d["a"].x, d["b"].x = torch.randn(3, 2), torch.randn(5, 2)
    d["a", "to", "b"].edge_index = torch.tensor([[0, 2], [4, 0]])
    graph = tcg.transforms.ToTCGraph()(d)["a", "to", "b"].tcg
    assert (graph.num_cols, graph.num_rows) == (3, 5)


def test_batch_of_graphs():
    batch = tcg.transforms.ToTCGraph()(pyg_data.Batch.from_data_list([data(), data()]))
    one = tcg.as_graph(EDGES, 4)
    assert torch.equal(batch.tcg.to_edge_index(), tcg.from_batch([one, one]).to_edge_index())


def test_data_without_edges_is_refused():
    with pytest.raises(ValueError, match="edge_index or adj_t, got Data"):
        tcg.transforms.ToTCGraph()(pyg_data.Data(x=torch.ones(2, 1)))
