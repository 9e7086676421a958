"""`explain` names the kernel that a call would run."""

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn import data


@pytest.fixture
def g():
    return tcg.TCGraph.from_edge_index(torch.tensor([[0, 1, 1], [1, 0, 1]]), num_nodes=2)


def test_the_cpu_has_one_kernel(g):
    found = tcg.explain(g, torch.ones(2, 4), torch.ones(3))
    assert (found.kernel, found.path, found.predicted_us) == ("embedding_bag", "cpu", {})
    assert str(found) == "embedding_bag (cpu): the operands are on the CPU"


@pytest.mark.parametrize("width, edges", [(0, 3), (4, 0)])
def test_nothing_to_add_up_runs_no_kernel(width, edges):
    g = tcg.TCGraph.from_edge_index(torch.zeros(2, edges, dtype=torch.long), num_nodes=2)
    found = tcg.explain(g, torch.ones(2, width))
    assert found.kernel == "zeros"
    assert f"{edges} edges, x of shape (2, {width})" in found.reason


def test_what_cannot_run_is_not_explained():
    g = tcg.TCGraph.from_edge_index(torch.tensor([[0], [1]]), num_nodes=2, path="tc")
    with pytest.raises(RuntimeError, match="path='tc' needs a GPU"):
        tcg.explain(g, torch.ones(2, 4))


def test_bad_operands_are_named_as_spmm_names_them(g):
    for x, weight in [(torch.ones(3, 4), None), (torch.ones(2, 4), torch.ones(2))]:
        with pytest.raises(ValueError, match="must have") as by_spmm:
            tcg.spmm(g, x, weight)
        with pytest.raises(ValueError, match="must have") as by_explain:
            tcg.explain(g, x, weight)
        assert str(by_explain.value) == str(by_spmm.value)


def test_predictions_are_shown_where_there_was_a_choice():
    shown = str(tcg.Explanation("cuda_rows", "cuda", "faster", {"tc": 12.34, "cuda": 5.0}))
    assert shown == "cuda_rows (cuda): faster; predicted: tc 12.3 µs, cuda 5.0 µs"


@pytest.mark.gpu
@pytest.mark.parametrize("path", ["tc", "cuda"])
def test_a_forced_path_is_what_runs(path):
    graph = data.sbm([32] * 50, 0.4, 1e-3).to("cuda")
    g = tcg.TCGraph.from_edge_index(graph.edge_index, graph.num_nodes, path=path)
    found = tcg.explain(g, torch.ones(graph.num_nodes, 64, device="cuda"))
    assert found.path == path
    assert found.predicted_us == {}


@pytest.mark.gpu
def test_the_predicted_path_is_what_runs():
    dense, sparse = data.sbm([256] * 100, 0.3, 0.0), data.grid_road(100_000, 280_000)
    both = torch.cat([dense.edge_index, sparse.edge_index + dense.num_nodes], dim=1)
    paths = []
    for edge_index, num_nodes in (
        (dense.edge_index, dense.num_nodes),
        (sparse.edge_index, sparse.num_nodes),
        (both, dense.num_nodes + sparse.num_nodes),
    ):
        g = tcg.TCGraph.from_edge_index(edge_index.cuda(), num_nodes)
        found = tcg.explain(g, torch.ones(num_nodes, 128, device="cuda"))
        predicted = found.predicted_us or {"cuda": 0.0}  # no window gains by tensor cores: no choice
        assert found.path == min(predicted, key=predicted.__getitem__)
        paths.append(found.path)
    assert paths == ["tc", "cuda", "mixed"]


@pytest.mark.gpu
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_both_paths_together_are_right_forward_and_backward(dtype, weighted):
    """A graph of which half is dense and half is not, edges in random order."""
    dense, sparse = data.sbm([256] * 100, 0.3, 0.0), data.grid_road(100_000, 280_000)
    n = dense.num_nodes + sparse.num_nodes
    edges = torch.cat([dense.edge_index, sparse.edge_index + dense.num_nodes], dim=1)
    edges = edges[:, torch.randperm(edges.shape[1], generator=torch.Generator().manual_seed(0))].cuda()
    g = tcg.TCGraph.from_edge_index(edges, n)
    rows = tcg.TCGraph.from_edge_index(edges, n, path="cuda")
    adjacency = g.prepared(dtype)
    if dtype == torch.float32:
        assert adjacency.rest is not None
        adjacency.decisions[dtype, torch.Size([64]), weighted, False] = ("mixed", "for this test")
    results = []
    for graph, to in ((g, dtype), (rows, torch.float64)):
        generator = torch.Generator("cuda").manual_seed(1)
        x = torch.randn(n, 64, device="cuda", generator=generator).to(dtype).to(to).requires_grad_()
        w = torch.rand(g.num_edges, device="cuda", generator=generator).to(dtype).to(to).requires_grad_()
        grad = torch.randn(n, 64, device="cuda", generator=generator).to(dtype).to(to)
        out = tcg.spmm(graph, x, w if weighted else None)
        out.backward(grad)
        results.append((out, x.grad, *([w.grad] if weighted else [])))
    for ours, exact in zip(*results):
        tolerance = 1e-5 if dtype == torch.float32 else 2e-3
        assert float((ours.double() - exact).abs().max() / exact.abs().max()) < tolerance
