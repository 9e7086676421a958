"""Every graph format becomes the same `TCGraph`; what does not fit says so."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch_tcgnn as tcg

EDGES = torch.tensor([[0, 3, 1, 2, 2], [1, 1, 0, 2, 0]])  # 4 sources, 3 targets, one loop
SIZE = (4, 3)
VALUES = torch.tensor([0.5, 2.0, 3.0, 4.0, 5.0])


def dense(g: tcg.TCGraph) -> torch.Tensor:
    return tcg.spmm(g, torch.eye(g.num_cols))


def expected(weighted: bool = True) -> torch.Tensor:
    matrix = torch.zeros(3, 4)
    matrix[EDGES[1], EDGES[0]] = VALUES if weighted else torch.ones(5)
    return matrix


class SparseTensor:
    """The part of torch-sparse's class that is used, rows are targets."""

    def __init__(self, row, col, value, sizes):
        self._parts, self._sizes, self.storage = (row, col, value), sizes, SimpleNamespace()

    def coo(self):
        return self._parts

    def size(self, dim):
        return self._sizes[dim]

    def has_value(self):
        return self._parts[2] is not None


class FakeDGL:
    canonical_etypes = (("n", "e", "n"),)

    def edges(self, form, order):
        assert (form, order) == ("uv", "eid")
        return EDGES[0], EDGES[1]

    def num_src_nodes(self):
        return 4

    def num_dst_nodes(self):
        return 3


FakeDGL.__module__ = "dgl.heterograph"


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_edge_list(dtype):
    g = tcg.as_graph(EDGES.to(dtype), SIZE, VALUES)
    assert torch.equal(dense(g), expected())
    assert torch.equal(g.to_edge_index(), EDGES)


def test_edge_list_against_the_flow():
    g = tcg.as_graph(EDGES.flip(0), (3, 4), VALUES, flow="target_to_source")
    assert torch.equal(dense(g), expected())


def test_pyg_edge_index_knows_its_size():
    pyg = pytest.importorskip("torch_geometric")
    g = tcg.as_graph(pyg.EdgeIndex(EDGES, sparse_size=SIZE))
    assert (g.num_cols, g.num_rows) == SIZE
    assert torch.equal(dense(g), expected(weighted=False))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_torch_sparse_layouts_hold_targets_in_rows(layout):
    g = tcg.from_sparse(expected().to_sparse(layout=layout))
    assert torch.equal(dense(g), expected())


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_matrix_of_ones_is_unweighted(layout):
    assert tcg.as_graph(expected(weighted=False).to_sparse(layout=layout)).weight is None


def test_gradient_reaches_the_values_of_a_matrix():
    values = torch.ones(2, requires_grad=True)
    adj = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), values, (2, 2))
    tcg.spmm(tcg.as_graph(adj), torch.tensor([[2.0], [3.0]])).sum().backward()
    assert values.grad.tolist() == [3.0, 2.0]


@pytest.mark.parametrize("valued", [True, False])
def test_sparse_tensor_by_its_shape_alone(valued):
    adj = SparseTensor(EDGES[1], EDGES[0], VALUES if valued else None, (3, 4))
    assert torch.equal(dense(tcg.from_torch_sparse(adj)), expected(weighted=valued))


def test_real_sparse_tensor():
    torch_sparse = pytest.importorskip("torch_sparse", reason="torch-sparse is built by `nox -s interop`")
    adj = torch_sparse.SparseTensor(row=EDGES[1], col=EDGES[0], value=VALUES, sparse_sizes=(3, 4))
    assert torch.equal(dense(tcg.as_graph(adj)), expected())


@pytest.mark.parametrize("format", ["coo", "csr", "csc", "lil", "dok"])
@pytest.mark.parametrize("kind", ["matrix", "array"])
def test_scipy(format, kind):
    sparse = pytest.importorskip("scipy.sparse")
    m = getattr(sparse, f"coo_{kind}")((VALUES.numpy(), (EDGES[1].numpy(), EDGES[0].numpy())), shape=(3, 4))
    x = torch.randn(4, 2)
    out = tcg.spmm(tcg.from_scipy(m.asformat(format)), x)
    torch.testing.assert_close(out, torch.from_numpy(m @ x.numpy()))


def test_dgl_by_its_shape_alone():
    g = tcg.from_dgl(FakeDGL())
    assert torch.equal(g.to_edge_index(), EDGES)
    assert (g.num_cols, g.num_rows) == SIZE


def test_translated_graph_is_returned_as_it_is():
    g = tcg.as_graph(EDGES, SIZE)
    assert tcg.as_graph(g) is g
    assert torch.equal(dense(tcg.as_graph(g, weight=VALUES)), expected())


def test_batch_gives_each_graphs_own_result_bit_for_bit():
    rng = torch.Generator().manual_seed(0)
    graphs, features = [], []
    for sources, targets, edges in ((5, 4, 12), (1, 3, 0), (7, 7, 30), (2, 2, 3)):
        ei = torch.stack([torch.randint(n, (edges,), generator=rng) for n in (sources, targets)])
        graphs.append(tcg.TCGraph.from_edge_index(ei, (sources, targets), torch.rand(edges, generator=rng)))
        features.append(torch.randn(sources, 6, generator=rng))
    batch = tcg.from_batch(graphs)
    assert (batch.num_cols, batch.num_rows, batch.num_edges) == (15, 16, 45)
    alone = torch.cat([tcg.spmm(g, x) for g, x in zip(graphs, features)])
    assert torch.equal(tcg.spmm(batch, torch.cat(features)), alone)
    logits = torch.randn(batch.num_edges, generator=rng)
    parts = logits.split([g.num_edges for g in graphs])
    for per_edge in (tcg.edge_softmax, tcg.segment):
        alone = torch.cat([per_edge(g, part) for g, part in zip(graphs, parts)])
        assert torch.equal(per_edge(batch, logits), alone)
    edges = torch.cat(
        [g.to_edge_index() + torch.tensor([[c], [r]]) for g, c, r in zip(graphs, (0, 5, 6, 13), (0, 4, 7, 14))], dim=1
    )
    assert torch.equal(batch.to_edge_index(), edges)


def test_batch_of_ordered_graphs_keeps_no_edge_numbers():
    g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1], [0, 1]]), 2)
    assert tcg.from_batch([g, g]).adjacency.edge.numel() == 0


def test_importing_takes_no_other_library_along():
    others = ("torch_geometric", "scipy", "lightning", "triton", "dgl", "torch_sparse")
    path = [p for p in sys.path if p.endswith("torch-tcgnn/src")]
    code = f"import sys; sys.path[:0] = {path}; import torch_tcgnn; print([m for m in sys.modules if m in {others}])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: tcg.as_graph([[0], [1]]), TypeError, "edge_index must be an integer tensor.*got list"),
        (lambda: tcg.as_graph(torch.zeros(2, 3)), ValueError, "int32 or int64, got torch.float32"),
        (lambda: tcg.as_graph(torch.zeros(3, 2).long()), ValueError, r"shape \[2, num_edges\], got \(3, 2\)"),
        (lambda: tcg.as_graph(torch.tensor([[0, 1], [1, 5]]), 3), ValueError, r"node 5 in edge 1 \(1, 5\).* 3"),
        (lambda: tcg.as_graph(torch.tensor([[0, -1], [1, 1]]), 3), ValueError, r"node -1 in edge 1 \(-1, 1\)"),
        (lambda: tcg.as_graph(EDGES, SIZE, VALUES[:3]), ValueError, r"shape \[5\].*got \(3,\)"),
        (lambda: tcg.as_graph(EDGES, SIZE, torch.ones(5).long()), TypeError, "floating point, got torch.int64"),
        (lambda: tcg.as_graph(expected().to_sparse(), (3, 4)), ValueError, r"4 sources.*3 targets.*\(3, 4\)"),
        (lambda: tcg.as_graph(tcg.as_graph(EDGES, SIZE), 4), ValueError, "does not fit num_nodes=4"),
        (
            lambda: tcg.as_graph(expected().to_sparse(), flow="target_to_source"),
            ValueError,
            "'target_to_source' needs an edge list, got Tensor",
        ),
        (lambda: tcg.from_batch([]), ValueError, "at least one TCGraph, got none"),
        (
            lambda: tcg.from_batch([tcg.as_graph(EDGES, SIZE), tcg.as_graph(EDGES, SIZE, VALUES)]),
            ValueError,
            "all be weighted or none, got weights in 1 of 2",
        ),
        (lambda: tcg.from_scipy(EDGES), TypeError, "SciPy sparse matrix or array, got Tensor"),
        (lambda: tcg.from_torch_sparse(EDGES), TypeError, "torch_sparse.SparseTensor .*, got Tensor"),
        (lambda: tcg.from_dgl(EDGES), TypeError, "DGL graph, got Tensor"),
    ],
)
def test_bad_input_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_an_edge_index_keeps_the_size_it_stores():
    pyg = pytest.importorskip("torch_geometric")
    edges = pyg.EdgeIndex([[0, 1], [1, 0]], sparse_size=(5, 5))
    assert tcg.TCGraph.from_edge_index(edges).num_rows == 5
