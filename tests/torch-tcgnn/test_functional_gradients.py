"""First and second derivatives in float64, on a directed bipartite graph with duplicates and empty rows."""

import pytest
import torch
import torch_tcgnn as tcg

REDUCES = ["sum", "mean", "max", "min"]
SOURCES, TARGETS = 5, 4
EDGES = torch.tensor([[0, 4, 1, 1, 3, 0, 2, 4, 1], [0, 0, 2, 2, 3, 2, 3, 0, 0]])  # target 1 has none; (1 → 2) twice
GRAPH = tcg.TCGraph.from_edge_index(EDGES, (SOURCES, TARGETS))
LONG = torch.randint(50_000, (2, 60_000), generator=torch.Generator().manual_seed(0))


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True)


CALLS = {
    **{f"spmm {r}": (lambda x, r=r: tcg.spmm(GRAPH, x, reduce=r), [(SOURCES, 3)]) for r in REDUCES},
    **{f"spmm {r}, [E]": (lambda x, w, r=r: tcg.spmm(GRAPH, x, w, reduce=r), [(SOURCES, 3), (9,)]) for r in REDUCES},
    **{
        f"spmm {r}, [E] on heads": (lambda x, w, r=r: tcg.spmm(GRAPH, x, w, reduce=r), [(SOURCES, 2, 3), (9,)])
        for r in REDUCES
    },
    **{
        f"spmm {r}, [E, H]": (lambda x, w, r=r: tcg.spmm(GRAPH, x, w, reduce=r), [(SOURCES, 2, 3), (9, 2)])
        for r in REDUCES
    },
    "sddmm": (lambda a, b: tcg.sddmm(GRAPH, a, b, scale=0.5), [(TARGETS, 3), (SOURCES, 3)]),
    "sddmm, heads": (lambda a, b: tcg.sddmm(GRAPH, a, b), [(TARGETS, 2, 3), (SOURCES, 2, 3)]),
    "edge_softmax": (lambda e: tcg.edge_softmax(GRAPH, e), [(9,)]),
    "edge_softmax, heads": (lambda e: tcg.edge_softmax(GRAPH, e), [(9, 2)]),
    **{f"segment {r}": (lambda e, r=r: tcg.segment(GRAPH, e, r), [(9, 2)]) for r in REDUCES},
    "gather_src": (lambda x: tcg.gather_src(GRAPH, x), [(SOURCES, 2)]),
    "gather_dst": (lambda x: tcg.gather_dst(GRAPH, x), [(TARGETS, 2)]),
}


@pytest.mark.parametrize("name", CALLS)
def test_gradients_equal_finite_differences(name):
    call, shapes = CALLS[name]
    inputs = [randn(*shape, seed=k) for k, shape in enumerate(shapes)]
    assert torch.autograd.gradcheck(call, inputs)


@pytest.mark.parametrize("name", CALLS)
def test_second_gradients_equal_finite_differences(name):
    call, shapes = CALLS[name]
    inputs = [randn(*shape, seed=k) for k, shape in enumerate(shapes)]
    assert torch.autograd.gradgradcheck(call, inputs)


@pytest.mark.parametrize("which", [0, 1])
def test_only_the_input_that_wants_a_gradient_gets_one(which):
    inputs = [randn(SOURCES, 3), randn(9, seed=1)]
    inputs[1 - which].requires_grad_(False)
    (grad,) = torch.autograd.grad(tcg.spmm(GRAPH, *inputs).square().sum(), inputs[which])
    assert grad.shape == inputs[which].shape
    assert torch.autograd.gradgradcheck(lambda *args: tcg.spmm(GRAPH, *args), inputs)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_learned_scale_gets_its_gradient_where_it_is_one(shape):
    a, b = torch.rand(TARGETS, 3), torch.rand(SOURCES, 3)
    scale = torch.ones(shape, dtype=torch.float64, requires_grad=True)
    out = tcg.sddmm(GRAPH, a, b, scale=scale)
    out.sum().backward()
    assert out.shape == (GRAPH.num_edges,)
    assert out.dtype == torch.float32
    torch.testing.assert_close(scale.grad.sum(), out.detach().sum().double())


def test_gradient_of_a_directed_graph_flows_against_the_edges():
    g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 0], [1, 2]]), 3)
    x = randn(3, 1)
    (grad,) = torch.autograd.grad(tcg.spmm(g, x)[1].sum(), x)
    assert grad.tolist() == [[1.0], [0.0], [0.0]]


def test_each_copy_of_an_edge_has_its_own_gradient():
    g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1, 0], [1, 0, 1]]), 2)
    x, w = randn(2, 4), torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64, requires_grad=True)
    grad = randn(2, 4, seed=1).detach()
    grad_x, grad_w = torch.autograd.grad(tcg.spmm(g, x, w), [x, w], grad)
    forward, back = grad[1] @ x[0], grad[0] @ x[1]
    torch.testing.assert_close(grad_w, torch.stack([forward, back, forward]).detach())
    torch.testing.assert_close(grad_x, torch.stack([7 * grad[1], 3 * grad[0]]))


def test_gradient_of_an_extremum_goes_to_the_first_of_equals():
    g = tcg.TCGraph.from_edge_index(torch.tensor([[2, 0, 1], [0, 0, 0]]), 3)
    x = torch.ones(3, 1, requires_grad=True)
    (grad,) = torch.autograd.grad(tcg.spmm(g, x, reduce="max").sum(), x)
    assert grad.tolist() == [[1.0], [0.0], [0.0]]


def test_gradients_of_a_graph_of_fifty_thousand_nodes():
    g = tcg.TCGraph.from_edge_index(LONG, 50_000)
    x, w, grad = randn(50_000, 2), randn(60_000, seed=1), randn(50_000, 2, seed=2).detach()
    grad_x, grad_w = torch.autograd.grad(tcg.spmm(g, x, w), [x, w], grad)
    source, target = LONG
    expected = torch.zeros(50_000, 2, dtype=torch.float64).index_add(0, source, w.detach()[:, None] * grad[target])
    torch.testing.assert_close(grad_x, expected)
    torch.testing.assert_close(grad_w, (grad[target] * x.detach()[source]).sum(1))


def test_under_no_grad_nothing_is_recorded_and_no_transpose_is_built():
    g = tcg.TCGraph.from_edge_index(EDGES, (SOURCES, TARGETS))
    x = randn(SOURCES, 3)
    with torch.no_grad():
        y = tcg.spmm(g, x)
    assert not y.requires_grad
    assert "t" not in g._derived
    assert torch.equal(y, tcg.spmm(g, x))


def test_features_without_gradient_build_no_transpose():
    g = tcg.TCGraph.from_edge_index(EDGES, (SOURCES, TARGETS))
    tcg.spmm(g, torch.ones(SOURCES, 3))
    assert "t" not in g._derived


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gradients_have_the_type_of_their_input(dtype):
    x, w = randn(SOURCES, 3).detach().to(dtype).requires_grad_(), randn(9).detach().to(dtype).requires_grad_()
    for reduce in REDUCES:
        grads = torch.autograd.grad(tcg.spmm(GRAPH, x, w, reduce=reduce).sum(), [x, w])
        assert [g.dtype for g in grads] == [dtype, dtype]


def test_gradients_are_the_same_bits_twice():
    g = tcg.TCGraph.from_edge_index(LONG % 500, 500)
    runs = []
    for _ in range(2):
        x, w = randn(500, 9).detach().float().requires_grad_(), randn(60_000, seed=1).detach().float().requires_grad_()
        runs.append(torch.autograd.grad(tcg.spmm(g, x, w).square().sum(), [x, w]))
    assert all(torch.equal(a, b) for a, b in zip(*runs))
