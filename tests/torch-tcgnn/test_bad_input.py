"""Every wrong argument is refused by name, with what it got and what it should have been."""

import re

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn.cost import paths_on

EDGES = torch.tensor([[0, 1, 2], [1, 2, 1]])
GRAPH = tcg.TCGraph.from_edge_index(EDGES, 3)
BIPARTITE = tcg.TCGraph.from_edge_index(torch.tensor([[0, 4], [1, 2]]), (5, 3))
X, E, H = torch.ones(3, 2), torch.ones(3), torch.ones(3, 2, 4)
META = torch.device("meta")


def edges(*args, **options):
    return lambda: tcg.TCGraph.from_edge_index(*args, **options)


def csr(rowptr, col, *args, **options):
    return lambda: tcg.TCGraph.from_csr(torch.tensor(rowptr), torch.tensor(col), *args, **options)


GRAPH_ERRORS = [
    (edges(EDGES.float()), ValueError, "edge_index must be int32 or int64, got torch.float32"),
    (edges(EDGES.bool()), ValueError, "edge_index must be int32 or int64, got torch.bool"),
    (edges(EDGES.t()), ValueError, "edge_index must have shape [2, num_edges], got (3, 2)"),
    (edges(EDGES[0]), ValueError, "edge_index must have shape [2, num_edges], got (3,)"),
    (edges([[0], [1]]), TypeError, "edge_index must be a Tensor, got list"),
    (edges(EDGES, 2), ValueError, "edge_index holds node 2 in edge 2 (2, 1), but ids must lie in [0, 2)"),
    (edges(EDGES, (3, 2)), ValueError, "edge_index holds node 2 in edge 1 (1, 2), but ids must lie in [0, 2)"),
    (
        edges(EDGES, (2, 3), flow="target_to_source"),
        ValueError,
        "edge_index holds node 2 in edge 2 (2, 1), but ids must lie in [0, 2)",
    ),
    (edges(EDGES, 0), ValueError, "edge_index holds node 0 in edge 0 (0, 1), but ids must lie in [0, 0)"),
    (edges(EDGES - 1), ValueError, "edge_index holds node -1 in edge 0 (-1, 0), but ids must lie in [0, 2147483647)"),
    (edges(EDGES.int() - 1, 3), ValueError, "edge_index holds node -1 in edge 0 (-1, 0), but ids must lie in [0, 3)"),
    (edges(EDGES, -1), ValueError, "num_nodes must lie in [0, 2**31) (ids are int32), got -1"),
    (edges(EDGES, (3, 2**31)), ValueError, "num_nodes must lie in [0, 2**31) (ids are int32), got 2147483648"),
    (edges(EDGES, (3, 3, 3)), ValueError, "num_nodes must be two counts, got (3, 3, 3)"),
    (edges(EDGES, [3, 3]), TypeError, "num_nodes must be a count or a tuple of two, got [3, 3]"),
    (edges(EDGES, 3.0), TypeError, "num_nodes must be a count or a tuple of two, got 3.0"),
    (edges(EDGES, torch.tensor(3)), TypeError, "num_nodes must be a count or a tuple of two, got tensor(3)"),
    (edges(EDGES, 3, torch.ones(4)), ValueError, "edge_weight must have shape [3] or [3, H], got (4,)"),
    (edges(EDGES, 3, torch.ones(3, 1, 1)), ValueError, "edge_weight must have shape [3] or [3, H], got (3, 1, 1)"),
    (edges(EDGES, 3, torch.ones(())), ValueError, "edge_weight must have shape [3] or [3, H], got ()"),
    (edges(EDGES, 3, torch.ones(3).long()), TypeError, "edge_weight must be floating point, got torch.int64"),
    (edges(EDGES, 3, torch.ones(3, device=META)), ValueError, "edge_weight is on meta, but the graph is on cpu"),
    (edges(EDGES, flow="up"), ValueError, "flow must be one of 'source_to_target', 'target_to_source', got 'up'"),
    (edges(EDGES, path="fast"), ValueError, "path must be one of 'auto', 'tc', 'cuda', got 'fast'"),
    (
        edges(EDGES, reorder="x"),
        ValueError,
        "reorder must be one of 'none', 'degree', 'rcm', 'lsh', 'community', got 'x'",
    ),
    (csr([1, 2], [0]), ValueError, "rowptr must start at 0, got 1"),
    (csr([0, 2, 1, 2], [0, 1]), ValueError, "rowptr must not decrease, got 2 then 1 at row 1"),
    (csr([0, 1], [0, 0]), ValueError, "rowptr must end at the number of edges 2, got 1"),
    (csr([], [0]), TypeError, "rowptr must be int32 or int64, got torch.float32"),
    (csr([[0, 1]], [0]), ValueError, "rowptr must have one dimension, got shape (1, 2)"),
    (csr([0.0, 1.0], [0], validate=False), TypeError, "rowptr must be int32 or int64, got torch.float32"),
    (csr([0, 1], [0.0], validate=False), TypeError, "col must be int32 or int64, got torch.float32"),
    (csr([[0, 1]], [0], validate=False), ValueError, "rowptr must have one dimension, got shape (1, 2)"),
    (csr([], [0], validate=False), TypeError, "rowptr must be int32 or int64, got torch.float32"),
    (csr([0, 1], [0.0]), TypeError, "col must be int32 or int64, got torch.float32"),
    (csr([0, 1, 2], [0, 2]), ValueError, "col holds node 2 in edge 1 (2, 1), but ids must lie in [0, 2)"),
    (csr([0, 1], [-1]), ValueError, "col holds node -1 in edge 0 (-1, 0), but ids must lie in [0, 1)"),
    (csr([0, 1], [0], size=(2, 1)), ValueError, "size must have 1 rows, as rowptr has, got (2, 1)"),
    (csr([0, 1], [0], size=(1, -4)), ValueError, "size must lie in [0, 2**31) (ids are int32), got -4"),
    (csr([0, 1], [0], size=(1,)), ValueError, "size must be two counts, got (1,)"),
    (csr([0, 1], [0], torch.ones(2)), ValueError, "value must have shape [1] or [1, H], got (2,)"),
    (csr([0, 1], [0], path="tcu"), ValueError, "path must be one of 'auto', 'tc', 'cuda', got 'tcu'"),
    (lambda: GRAPH.with_weight(torch.ones(2)), ValueError, "weight must have shape [3] or [3, H], got (2,)"),
    (lambda: BIPARTITE.with_self_loops(), ValueError, "self loops need a square graph, got 5 sources and 3 targets"),
]
CALL_ERRORS = [
    (lambda: tcg.spmm(GRAPH, X[:2]), ValueError, "x must have 3 rows for TCGraph(3 targets, 3 sources", "(2, 2)"),
    (lambda: tcg.spmm(BIPARTITE, X), ValueError, "x must have 5 rows for TCGraph(3 targets, 5 sources", "(3, 2)"),
    (lambda: tcg.spmm(GRAPH, X.long()), TypeError, "x: features must be floating point, got torch.int64"),
    (lambda: tcg.spmm(GRAPH, X.cfloat()), TypeError, "x: features must be floating point, got torch.complex64"),
    (lambda: tcg.spmm(GRAPH, E), ValueError, "x must have 2 or 3 dimensions, got shape (3,)"),
    (lambda: tcg.spmm(GRAPH, H[None]), ValueError, "x must have 2 or 3 dimensions, got shape (1, 3, 2, 4)"),
    (lambda: tcg.spmm(GRAPH, X.to(META)), ValueError, "x is on meta, but the graph is on cpu"),
    (lambda: tcg.spmm(GRAPH, X, E[:2]), ValueError, "weight must have 3 rows, one an edge, got shape (2,)"),
    (lambda: tcg.spmm(GRAPH, X, E.int()), TypeError, "weight must be floating point, got torch.int32"),
    (lambda: tcg.spmm(GRAPH, X, E.to(META)), ValueError, "weight is on meta, but the graph is on cpu"),
    (lambda: tcg.spmm(GRAPH, X, E.sum()), ValueError, "weight must have 3 rows, one an edge, got shape ()"),
    (lambda: tcg.spmm(GRAPH, X, X), ValueError, "weight of shape (3, 2) needs x of shape [K, H, F], got (3, 2)"),
    (lambda: tcg.spmm(GRAPH, H, torch.ones(3, 5)), ValueError, "weight has 5 heads, x has 2"),
    (lambda: tcg.spmm(GRAPH, H, H), ValueError, "weight must have shape [E] or [E, H], got (3, 2, 4)"),
    (
        lambda: tcg.spmm(GRAPH, X, reduce="median"),
        ValueError,
        "reduce must be one of 'sum', 'mean', 'max', 'min'",
        "'median'",
    ),
    (lambda: tcg.spmm(GRAPH, X, precision="fp8"), ValueError, "precision must be one of 'ieee', 'tf32', got 'fp8'"),
    (lambda: tcg.spmm(GRAPH, X, reduce="max", precision="fp8"), ValueError, "precision must be one of", "got 'fp8'"),
    (lambda: tcg.sddmm(BIPARTITE, torch.ones(5, 2), torch.ones(5, 2)), ValueError, "a must have 3 rows", "(5, 2)"),
    (lambda: tcg.sddmm(BIPARTITE, X, X), ValueError, "b must have 5 rows", "(3, 2)"),
    (lambda: tcg.sddmm(GRAPH, X, torch.ones(3, 5)), ValueError, "a and b must agree", "(3, 2) and (3, 5)"),
    (lambda: tcg.sddmm(GRAPH, X, H), ValueError, "a and b must agree", "(3, 2) and (3, 2, 4)"),
    (lambda: tcg.sddmm(GRAPH, X, X.double()), TypeError, "one dtype, got torch.float32 and torch.float64"),
    (lambda: tcg.sddmm(GRAPH, X, X, precision="half"), ValueError, "precision must be one of", "got 'half'"),
    (lambda: tcg.sddmm(GRAPH, X.to(META), X), ValueError, "a is on meta, but the graph is on cpu"),
    (lambda: tcg.edge_softmax(GRAPH, E[:2]), ValueError, "logits must have 3 rows, one an edge, got shape (2,)"),
    (lambda: tcg.edge_softmax(GRAPH, H), ValueError, "logits must have shape [E] or [E, H], got (3, 2, 4)"),
    (lambda: tcg.edge_softmax(GRAPH, E.long()), TypeError, "logits must be floating point, got torch.int64"),
    (lambda: tcg.segment(GRAPH, E[:2]), ValueError, "values must have 3 rows, one an edge, got shape (2,)"),
    (
        lambda: tcg.segment(GRAPH, E, "prod"),
        ValueError,
        "reduce must be one of 'sum', 'mean', 'max', 'min', got 'prod'",
    ),
    (lambda: tcg.segment(GRAPH, E.to(META)), ValueError, "values is on meta, but the graph is on cpu"),
    (lambda: tcg.gather_dst(BIPARTITE, torch.ones(5)), ValueError, "rows must have 3 rows", "(5,)"),
    (lambda: tcg.gather_src(BIPARTITE, torch.ones(3)), ValueError, "rows must have 5 rows", "(3,)"),
    (lambda: tcg.gather_src(GRAPH, torch.ones(())), ValueError, "rows must have 3 rows", "()"),
]


@pytest.mark.parametrize("call, error, message, more", [(*e, "")[:4] for e in GRAPH_ERRORS + CALL_ERRORS])
def test_wrong_input_is_named(call, error, message, more):
    with pytest.raises(error, match=re.escape(message) + ".*" + re.escape(more)):
        call()


def test_unchecked_ids_are_the_callers_word():
    """``validate=False`` looks at no id: right ones translate the same."""
    unchecked = tcg.TCGraph.from_edge_index(EDGES, 3, validate=False)
    assert torch.equal(unchecked.to_edge_index(), EDGES)
    rowptr, col, _ = GRAPH.csr()
    assert torch.equal(tcg.TCGraph.from_csr(rowptr, col, validate=False).csr()[1], col)


def test_numpy_counts_are_counts():
    np = pytest.importorskip("numpy")
    assert tcg.TCGraph.from_edge_index(EDGES, np.int64(3)).num_cols == 3


@pytest.mark.gpu
def test_graph_and_features_on_two_devices_are_both_named():
    with pytest.raises(ValueError, match=r"x is on cuda:0, but the graph is on cpu: move one of them with .to\(\)"):
        tcg.spmm(GRAPH, X.cuda())


def test_pointers_and_columns_on_two_devices():
    rowptr, col = torch.tensor([0, 1]), torch.zeros(1, dtype=torch.long, device="meta")
    with pytest.raises(ValueError, match=r"rowptr is on cpu, but col is on meta"):
        tcg.TCGraph.from_csr(rowptr, col)


@pytest.mark.parametrize("call", [lambda g: tcg.spmm(g, [[1.0]]), lambda g: tcg.segment(g, None)])
def test_operands_that_are_no_tensors(call):
    graph = tcg.TCGraph.from_edge_index(torch.tensor([[0], [0]]), 1)
    with pytest.raises(TypeError, match=r"(x|values) must be a Tensor, got (list|NoneType)"):
        call(graph)


def test_tensor_cores_asked_for_on_a_cpu_say_which_path_to_use():
    graph = tcg.TCGraph.from_edge_index(EDGES, 3, path="tc")
    for call in (lambda: tcg.spmm(graph, X), lambda: tcg.sddmm(graph, X, X)):
        with pytest.raises(RuntimeError, match=r"path='tc' needs a GPU of .* 8\.0 .*, got cpu: use path='auto'"):
            call()


def test_tensor_cores_asked_for_on_an_old_gpu_say_which_path_to_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    device = torch.device("cuda", 0)
    with pytest.raises(RuntimeError, match=r"path='tc' needs a GPU of .* 8\.0 .*, got cuda:0: use path='auto'"):
        paths_on("tc", device)
    assert paths_on("auto", device) == ("cuda",)


@pytest.mark.gpu
@pytest.mark.parametrize("layer", [tcg.nn.GCNConv, tcg.nn.SAGEConv, tcg.nn.GATConv, tcg.nn.TransformerConv])
def test_edges_and_features_of_a_layer_on_two_devices_are_both_named(layer):
    with pytest.raises(ValueError, match=r"is on cuda:0, but the graph is on cpu"):
        layer(2, 2).cuda()(X.cuda(), EDGES)
    with pytest.raises(ValueError, match=r"x.* is on cuda:0, but the layer is on cpu"):
        layer(2, 2)(X.cuda(), EDGES.cuda())
