"""TCGraph: what goes in comes out, in the same order; loops and normalisation are PyG's; copies are equal graphs."""

import copy
import dataclasses
import io
import pickle

import pytest
import torch
import torch_tcgnn as tcg
from torch.utils import _pytree as pytree
from torch_tcgnn import reference

# duplicates (1 → 0 twice, 3 → 3 twice), a self loop, a node without incoming edges (4)
EDGES = torch.tensor([[0, 1, 1, 2, 0, 3, 4, 3], [1, 0, 0, 2, 3, 3, 2, 3]])
WEIGHT = torch.tensor([0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])


def dense(g: tcg.TCGraph) -> torch.Tensor:
    source, target = g.to_edge_index()
    return reference.to_dense(target, source, g.weight, g.num_rows, g.num_cols)


def random_edges(sources: int, targets: int, edges: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    ids = [torch.randint(n, (edges,), generator=rng) for n in (sources, targets)]
    return torch.stack(ids)


def same_structure(a: tcg.TCGraph, b: tcg.TCGraph) -> bool:
    pairs = zip(a.adjacency.tensors(), b.adjacency.tensors())
    weights = a.weight is b.weight or torch.equal(a.weight, b.weight)
    return weights and a.num_cols == b.num_cols and all(torch.equal(s, t) for s, t in pairs)


def test_rows_are_targets_and_columns_ascend_inside_a_row():
    g = tcg.TCGraph.from_edge_index(EDGES, 5, WEIGHT)
    rowptr, col, weight = g.csr()
    assert rowptr.tolist() == [0, 2, 3, 5, 8, 8]
    assert col.tolist() == [1, 1, 0, 2, 4, 0, 3, 3]
    assert weight.tolist() == [1.0, 2.0, 0.5, 3.0, 6.0, 4.0, 5.0, 7.0]
    assert (rowptr.dtype, col.dtype) == (torch.int32, torch.int32)


def test_sizes_follow_from_the_largest_id():
    g = tcg.TCGraph.from_edge_index(EDGES)
    assert (g.num_rows, g.num_cols, g.num_edges) == (5, 5, 8)
    nothing = tcg.TCGraph.from_edge_index(torch.empty(2, 0, dtype=torch.int64))
    assert (nothing.num_rows, nothing.num_cols, nothing.num_edges) == (0, 0, 0)


def test_flow_target_to_source_swaps_the_roles():
    there = tcg.TCGraph.from_edge_index(EDGES, (5, 7), WEIGHT)
    back = tcg.TCGraph.from_edge_index(EDGES, (5, 7), WEIGHT, flow="target_to_source")
    assert (back.num_rows, back.num_cols) == (there.num_cols, there.num_rows)
    assert torch.equal(dense(back), dense(there).t())


@pytest.mark.parametrize("flow, rows", [("source_to_target", [0, 1]), ("target_to_source", [1, 0])])
def test_edges_come_back_as_source_and_target_whatever_the_flow(flow, rows):
    assert torch.equal(tcg.TCGraph.from_edge_index(EDGES, flow=flow).to_edge_index(), EDGES[rows])


def test_bipartite_sizes_are_sources_then_targets():
    edge_index = random_edges(9, 4, 30)
    g = tcg.TCGraph.from_edge_index(edge_index, (9, 4))
    assert (g.num_cols, g.num_rows) == (9, 4)
    assert torch.equal(g.to_edge_index(), edge_index)
    assert not g.is_symmetric


def test_int32_ids_give_the_same_graph():
    narrow = tcg.TCGraph.from_edge_index(EDGES.int(), 5, WEIGHT)
    assert same_structure(narrow, tcg.TCGraph.from_edge_index(EDGES, 5, WEIGHT))


def test_pyg_edge_index_is_accepted():
    edge_index = pytest.importorskip("torch_geometric").EdgeIndex(EDGES, sparse_size=(5, 5))
    g = tcg.TCGraph.from_edge_index(edge_index, 5)
    assert type(g.adjacency.col) is torch.Tensor
    assert same_structure(g, tcg.TCGraph.from_edge_index(EDGES, 5))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_later_edits_of_the_input_do_not_reach_the_graph(dtype):
    edge_index = torch.tensor([[1, 0, 2], [0, 1, 1]], dtype=dtype)  # sorted: nothing needs to be permuted
    g = tcg.TCGraph.from_edge_index(edge_index, 3)
    rowptr, col = torch.tensor([0, 1, 3], dtype=dtype), torch.tensor([1, 0, 2], dtype=dtype)
    from_rows = tcg.TCGraph.from_csr(rowptr, col, size=(2, 3))
    edge_index.zero_(), rowptr.zero_(), col.zero_()
    assert g.to_edge_index().tolist() == [[1, 0, 2], [0, 1, 1]]
    assert from_rows.to_edge_index().tolist() == [[1, 0, 2], [0, 1, 1]]


def test_csr_with_unsorted_columns_keeps_its_edge_order():
    rowptr, col = torch.tensor([0, 3, 3, 5]), torch.tensor([4, 0, 4, 2, 1])
    value = torch.arange(5.0)
    g = tcg.TCGraph.from_csr(rowptr, col, value, size=(3, 6))
    assert g.to_edge_index().tolist() == [[4, 0, 4, 2, 1], [0, 0, 0, 2, 2]]
    assert g.weight is value
    assert g.csr()[1].tolist() == [0, 4, 4, 1, 2]
    assert g.csr()[2].tolist() == [1.0, 0.0, 2.0, 4.0, 3.0]


def test_csr_and_edge_list_give_the_same_graph():
    g = tcg.TCGraph.from_edge_index(random_edges(12, 9, 40), (12, 9))
    rowptr, col, _ = g.csr()
    again = tcg.TCGraph.from_csr(rowptr, col, size=(9, 12))
    assert torch.equal(dense(again), dense(g))
    assert again.adjacency.edge.numel() == 0


def test_sorted_edges_store_no_edge_numbers():
    edge_index = torch.tensor([[1, 1, 0, 2], [0, 0, 1, 1]])
    assert tcg.TCGraph.from_edge_index(edge_index, 3).adjacency.edge.numel() == 0
    assert tcg.TCGraph.from_edge_index(edge_index.flip(1), 3).adjacency.edge.numel() == 4


def test_reversing_twice_gives_the_same_object():
    g = tcg.TCGraph.from_edge_index(EDGES, 5, WEIGHT)
    assert g.t().t() is g
    assert g.t() is g.t()
    assert torch.equal(dense(g.t()), dense(g).t())
    assert torch.equal(g.t().to_edge_index(), EDGES.flip(0))


def test_symmetric_graph_shares_its_rows_with_the_reverse():
    half = random_edges(30, 30, 60)
    g = tcg.TCGraph.from_edge_index(torch.cat([half, half.flip(0)], dim=1), 30)
    blocks = g.blocks
    assert g.is_symmetric
    assert g.t().adjacency.col is g.adjacency.col
    assert g.t().blocks is blocks
    assert torch.equal(g.t().to_edge_index(), g.to_edge_index().flip(0))
    assert not tcg.TCGraph.from_edge_index(half, 30).is_symmetric


def test_one_copy_more_of_an_edge_breaks_symmetry():
    edge_index = torch.tensor([[0, 1, 1], [1, 0, 0]])
    assert not tcg.TCGraph.from_edge_index(edge_index, 2).is_symmetric
    assert tcg.TCGraph.from_edge_index(edge_index[:, 1:], 2).has_duplicates


def test_slots_count_distinct_edges():
    g = tcg.TCGraph.from_edge_index(EDGES, 5)
    assert (g.num_edges, g.num_slots, g.has_duplicates) == (8, 6, True)


def test_with_weight_shares_blocks_and_leaves_the_graph_alone():
    g = tcg.TCGraph.from_edge_index(EDGES, 5)
    blocks = g.blocks
    weighted = g.with_weight(WEIGHT)
    assert weighted.blocks is blocks
    assert g.weight is None
    assert torch.equal(weighted.t().weight, WEIGHT)


def test_a_graph_is_frozen():
    g = tcg.TCGraph.from_edge_index(EDGES, 5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        g.num_cols = 3


def test_moving_to_the_same_device_is_free():
    g = tcg.TCGraph.from_edge_index(EDGES, 5, WEIGHT)
    assert g.to("cpu") is g
    assert g.to(torch.device("meta")).weight.device.type == "meta"


def test_graph_built_under_inference_mode_can_be_trained_on():
    with torch.inference_mode():
        g = tcg.TCGraph.from_edge_index(random_edges(6, 6, 20), 6)
        tcg.spmm(g, torch.ones(6, 2))
        g.t()
    x = torch.ones(6, 2, requires_grad=True)
    tcg.spmm(g, x).sum().backward()
    assert x.grad.sum() == 40


# self loops and normalisation


def looped_and_pyg(weight, fill):
    pyg = pytest.importorskip("torch_geometric.utils")
    g = tcg.TCGraph.from_edge_index(EDGES, 5, weight).with_self_loops(fill)
    return g, pyg.add_remaining_self_loops(EDGES, weight, fill, 5)


@pytest.mark.parametrize("fill", [1.0, 2.0])
@pytest.mark.parametrize("weight", [WEIGHT, torch.stack([WEIGHT, -WEIGHT], 1)], ids=["[E]", "[E, H]"])
def test_self_loops_are_added_as_pyg_does(weight, fill):
    g, (edge_index, expected) = looped_and_pyg(weight, fill)
    assert torch.equal(g.to_edge_index(), edge_index)
    assert torch.equal(g.weight, expected)


def test_unweighted_self_loops_stay_unweighted():
    g, (edge_index, expected) = looped_and_pyg(None, 1.0)
    assert torch.equal(g.to_edge_index(), edge_index)
    assert g.weight is None
    assert expected is None


def test_the_last_of_several_loops_keeps_its_weight():
    edge_index = torch.zeros(2, 100, dtype=torch.int64)
    g = tcg.TCGraph.from_edge_index(edge_index, 1, torch.arange(100.0)).with_self_loops()
    assert g.weight.tolist() == [99.0]


def test_self_loops_can_be_replaced():
    g = tcg.TCGraph.from_edge_index(EDGES, 5, WEIGHT).with_self_loops(0.25, remaining=False)
    source, target = g.to_edge_index()
    assert g.weight[source == target].tolist() == [0.25] * 5
    assert torch.equal(g.to_edge_index()[:, :-5], EDGES[:, EDGES[0] != EDGES[1]])


def test_bipartite_graph_has_no_self_loops():
    with pytest.raises(ValueError, match="9 sources and 4 targets"):
        tcg.TCGraph.from_edge_index(random_edges(9, 4, 30), (9, 4)).with_self_loops()


@pytest.mark.parametrize("improved", [False, True])
@pytest.mark.parametrize("add_self_loops", [False, True])
def test_gcn_norm_equals_pyg(improved, add_self_loops):
    gcn_conv = pytest.importorskip("torch_geometric.nn.conv.gcn_conv")
    g = tcg.TCGraph.from_edge_index(EDGES, 5, WEIGHT)
    g = g.gcn_norm(improved=improved, add_self_loops=add_self_loops)
    edge_index, weight = gcn_conv.gcn_norm(EDGES, WEIGHT, 5, improved, add_self_loops)
    assert torch.equal(g.to_edge_index(), edge_index)
    torch.testing.assert_close(g.weight, weight)


def test_unweighted_gcn_norm_equals_pyg():
    gcn_conv = pytest.importorskip("torch_geometric.nn.conv.gcn_conv")
    g = tcg.TCGraph.from_edge_index(EDGES, 5).gcn_norm()
    torch.testing.assert_close(g.weight, gcn_conv.gcn_norm(EDGES, None, 5)[1])


def test_gcn_norm_of_a_path_is_known():
    edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    a, b, c = 1 / 2, 6**-0.5, 1 / 3
    expected = torch.tensor([[a, b, 0], [b, c, b], [0, b, a]])
    g = tcg.TCGraph.from_edge_index(edge_index, 3).gcn_norm()
    torch.testing.assert_close(dense(g).float(), expected)


def test_zero_degree_gives_zero_weight():
    g = tcg.TCGraph.from_edge_index(torch.tensor([[0], [1]]), 2).gcn_norm(add_self_loops=False)
    assert g.weight.tolist() == [0.0]


def test_gcn_norm_is_differentiable_in_the_weights():
    def norm(weight):
        return tcg.TCGraph.from_edge_index(EDGES, 5, weight).gcn_norm().weight

    assert torch.autograd.gradcheck(norm, WEIGHT.double().requires_grad_())


# copies


def through_torch_save(g, as_dict: bool):
    file = io.BytesIO()
    torch.save(g.to_dict() if as_dict else g, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    return tcg.TCGraph.from_dict(loaded) if as_dict else loaded


COPIES = {
    "dict": lambda g: tcg.TCGraph.from_dict(g.to_dict()),
    "pickle": lambda g: pickle.loads(pickle.dumps(g)),
    "deepcopy": copy.deepcopy,
    "torch.save of the dict": lambda g: through_torch_save(g, True),
    "torch.save of the graph": lambda g: through_torch_save(g, False),
    "pytree": lambda g: pytree.tree_map(torch.clone, g),
}


@pytest.mark.parametrize("copy_of", COPIES.values(), ids=COPIES)
def test_a_copy_is_an_equal_graph_of_its_own(copy_of):
    g = tcg.TCGraph.from_edge_index(EDGES, 5, WEIGHT, reorder="degree", path="cuda")
    _ = g.blocks, g.t()
    again = copy_of(g)
    assert again is not g
    assert same_structure(again, g)
    assert (again.path, again.reorder) == ("cuda", "degree")
    assert torch.equal(dense(again.t()), dense(g).t())
    assert again.t().t() is again


def test_pytree_leaves_are_the_tensors():
    g = tcg.TCGraph.from_edge_index(EDGES, 5, WEIGHT)
    paths = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(g)[0]]
    assert paths == [".rowptr", ".col", ".edge", ".weight"]
    assert pytree.tree_leaves(g)[3] is WEIGHT


def test_to_of_nested_inputs_reaches_the_graph():
    g = tcg.TCGraph.from_edge_index(EDGES, 5, WEIGHT)
    moved = pytree.tree_map(lambda t: t.to("meta"), {"graph": g, "x": WEIGHT})
    assert moved["graph"].device.type == "meta"


class Aggregate(torch.nn.Module):
    def forward(self, g, x):
        return tcg.spmm(g, x)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["unweighted", "weighted"])
def test_graph_is_an_input_of_an_exported_program(weight):
    g, x = tcg.TCGraph.from_edge_index(EDGES, 5, weight), torch.randn(5, 3)
    program = torch.export.export(Aggregate(), (g, x))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    other = tcg.TCGraph.from_edge_index(EDGES.flip(0), 5, weight)
    for loaded in (program.module(), torch.export.load(file).module()):
        assert torch.equal(loaded(g, x), tcg.spmm(g, x))
        assert torch.equal(loaded(other, x), tcg.spmm(other, x))


@pytest.mark.parametrize("used", [False, True], ids=["fresh graph", "used graph"])
def test_graph_is_an_input_of_a_compiled_function(used):
    g = tcg.TCGraph.from_edge_index(EDGES, 5, WEIGHT)
    x = torch.randn(5, 3, requires_grad=True)
    if used:
        tcg.spmm(g, x)
    y = torch.compile(Aggregate(), backend="aot_eager", fullgraph=True)(g, x)
    y.square().sum().backward()
    grad, x.grad = x.grad, None
    tcg.spmm(g, x).square().sum().backward()
    torch.testing.assert_close(y, tcg.spmm(g, x))
    torch.testing.assert_close(grad, x.grad)


def test_storage_order_renumbers_edges_and_weights_together():
    torch.manual_seed(0)
    graph = tcg.TCGraph.from_edge_index(torch.randint(0, 9, (2, 40)), 9, torch.rand(40))
    stored = graph.in_storage_order()
    assert stored.adjacency.edge.numel() == 0
    x = torch.randn(9, 4)
    torch.testing.assert_close(tcg.spmm(stored, x), tcg.spmm(graph, x))
    torch.testing.assert_close(tcg.spmm(stored.t(), x), tcg.spmm(graph.t(), x))
    target, source = stored.to_edge_index().flip(0)
    assert torch.equal(target * 9 + source, (target * 9 + source).sort()[0])
