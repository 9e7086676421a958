"""torch-tcgnn says the same as torch-sparse, value and gradients, on the graphs that go wrong elsewhere."""

import pytest
import torch
import torch_tcgnn as tcg

torch_sparse = pytest.importorskip("torch_sparse", reason="torch-sparse is built by `nox -s interop`")

NODES, EDGES, FEATURES = 41, 400, 7


@pytest.fixture
def edges():
    """Directed, with duplicates, self loops, and nodes without edges; weights of either sign."""
    made = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, NODES - 4, (2, EDGES), generator=made)
    return edge_index, torch.randn(EDGES, dtype=torch.float64, generator=made)


@pytest.fixture
def features():
    return torch.randn(NODES, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_spmm_and_both_gradients_equal_torch_sparse(edges, features):
    edge_index, values = edges
    source, target = edge_index
    x, w = features.clone().requires_grad_(), values.clone().requires_grad_()
    x_theirs, w_theirs = features.clone().requires_grad_(), values.clone().requires_grad_()
    out = tcg.spmm(tcg.TCGraph.from_edge_index(edge_index, num_nodes=NODES), x, w)
    expected = torch_sparse.spmm(torch.stack([target, source]), w_theirs, NODES, NODES, x_theirs)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, x_theirs.grad)
    torch.testing.assert_close(w.grad, w_theirs.grad)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_every_reduction_equals_a_sparse_tensor_product(edges, features, reduce):
    edge_index, values = edges
    source, target = edge_index
    adj_t = torch_sparse.SparseTensor(row=target, col=source, value=values, sparse_sizes=(NODES, NODES))
    out = tcg.spmm(tcg.TCGraph.from_edge_index(edge_index, num_nodes=NODES), features, values, reduce=reduce)
    torch.testing.assert_close(out, torch_sparse.matmul(adj_t, features, reduce=reduce))
