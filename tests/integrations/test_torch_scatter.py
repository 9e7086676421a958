"""torch-tcgnn says the same as torch-scatter, which many graph libraries compute with."""

import pytest
import torch
import torch_tcgnn as tcg

torch_scatter = pytest.importorskip("torch_scatter", reason="torch-scatter is built by `nox -s interop`")

NODES, EDGES = 37, 300


@pytest.fixture
def graph_and_targets():
    """A directed multigraph with self loops, in which some nodes have no incoming edge."""
    made = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, NODES - 5, (2, EDGES), generator=made)
    return tcg.TCGraph.from_edge_index(edge_index, num_nodes=NODES), edge_index[1]


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_segment_and_its_gradient_equal_scatter(graph_and_targets, reduce):
    graph, target = graph_and_targets
    ours = torch.randn(EDGES, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    out = tcg.segment(graph, ours, reduce)
    expected = torch_scatter.scatter(theirs, target, dim=0, dim_size=NODES, reduce=reduce)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_edge_softmax_equals_scatter_softmax(graph_and_targets):
    graph, target = graph_and_targets
    logits = torch.randn(EDGES, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    expected = torch_scatter.composite.scatter_softmax(logits, target, dim=0)
    torch.testing.assert_close(tcg.edge_softmax(graph, logits), expected)
