"""The odd corners: no edges, no nodes, no features, one hub, thousands of empty rows, strange strides, NaN and Inf."""

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn import reference

REDUCES = ["sum", "mean", "max", "min"]
INF, NAN = float("inf"), float("nan")


def randn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def no_edges(sources: int, targets: int) -> tcg.TCGraph:
    return tcg.TCGraph.from_edge_index(torch.empty(2, 0, dtype=torch.int64), (sources, targets))


def random_edges(nodes: int = 20, edges: int = 90) -> torch.Tensor:
    return torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("sources, targets", [(4, 3), (0, 0), (0, 3), (3, 0), (1, 1)])
@pytest.mark.parametrize("heads", [(), (2,)], ids=["2-D", "3-D"])
def test_graph_without_edges_gives_zeros_and_zero_gradients(sources, targets, heads):
    g = no_edges(sources, targets)
    x = randn(sources, *heads, 5).requires_grad_()
    weight = torch.empty(0, *heads, dtype=torch.float64, requires_grad=True)
    for reduce in REDUCES:
        for w in (None, weight):
            y = tcg.spmm(g, x, w, reduce=reduce)
            assert y.shape == (targets, *heads, 5)
            assert not y.any()
            grads = torch.autograd.grad(y.sum(), [x] if w is None else [x, w])
            assert not grads[0].any()
    logits = torch.empty(0, *heads, dtype=torch.float64, requires_grad=True)
    assert tcg.sddmm(g, randn(targets, *heads, 5), x).shape == logits.shape
    assert tcg.edge_softmax(g, logits).shape == logits.shape
    for reduce in REDUCES:
        out = tcg.segment(g, logits, reduce)
        assert out.shape == (targets, *heads)
        assert not out.any()
    assert tcg.gather_src(g, x).shape == (0, *heads, 5)
    assert tcg.gather_dst(g, randn(targets, 5)).shape == (0, 5)
    assert torch.autograd.grad(tcg.gather_src(g, x).sum(), x)[0].shape == x.shape


@pytest.mark.parametrize("width", [0, 1, 7, 17, 129, 1_433])
@pytest.mark.parametrize("weighted", [False, True])
def test_any_number_of_features_is_right(width, weighted):
    edge_index = random_edges()
    g = tcg.TCGraph.from_edge_index(edge_index, 20)
    x, w = randn(20, width).requires_grad_(), randn(90).requires_grad_() if weighted else None
    matrix = reference.to_dense(edge_index[1], edge_index[0], w, 20, 20)
    y, grad = tcg.spmm(g, x, w), randn(20, width, seed=2)
    torch.testing.assert_close(y, matrix @ x, rtol=1e-12, atol=1e-12)
    (grad_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    torch.testing.assert_close(grad_x, matrix.t() @ grad, rtol=1e-12, atol=1e-12)
    if weighted:
        (grad_w,) = torch.autograd.grad(y, w, grad)
        torch.testing.assert_close(grad_w, (grad[edge_index[1]] * x[edge_index[0]]).sum(1), rtol=1e-12, atol=1e-12)
    for reduce in ("mean", "max", "min"):
        assert tcg.spmm(g, x, w, reduce=reduce).shape == (20, width)
    sampled = tcg.sddmm(g, x, x)
    torch.testing.assert_close(sampled, (x @ x.t())[edge_index[1], edge_index[0]], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)], ids=str)
@pytest.mark.parametrize("reduce", REDUCES)
def test_edge_values_without_elements_are_allowed(shape, reduce):
    g = tcg.TCGraph.from_edge_index(random_edges(), 20)
    assert tcg.segment(g, torch.zeros(90, *shape), reduce).shape == (20, *shape)


def test_a_graph_of_self_loops_is_the_identity():
    loops = torch.arange(9).expand(2, -1)
    g, x = tcg.TCGraph.from_edge_index(loops, 9), randn(9, 4)
    for reduce in REDUCES:
        assert torch.equal(tcg.spmm(g, x, reduce=reduce), x)
    assert torch.equal(tcg.edge_softmax(g, randn(9)), torch.ones(9, dtype=torch.float64))


def test_one_hub_with_all_edges():
    """A million edges into node 0; everybody else has none."""
    edges = 1_000_000
    source = torch.arange(edges) % 1_000
    g = tcg.TCGraph.from_edge_index(torch.stack([source, torch.zeros(edges, dtype=torch.int64)]), 1_000)
    x = torch.arange(1_000.0, dtype=torch.float64).view(-1, 1)
    assert tcg.spmm(g, x)[0].item() == 999 * 500 * 1_000
    assert tcg.spmm(g, x, reduce="mean")[0].item() == 499.5
    assert tcg.spmm(g, x, reduce="max")[0].item() == 999
    assert not tcg.spmm(g, x)[1:].any()
    assert tcg.segment(g, torch.ones(edges))[0] == edges
    assert torch.equal(tcg.spmm(g.t(), torch.ones(1_000, 1)), torch.full((1_000, 1), 1_000.0))


def test_half_precision_mean_over_a_hub_divides_by_the_true_degree():
    """70,000 does not fit float16; the sum here does."""
    edges = 70_000
    source = torch.arange(edges) % 7
    g = tcg.TCGraph.from_edge_index(torch.stack([source, torch.zeros(edges, dtype=torch.int64)]), 7)
    x = torch.zeros(7, 1, dtype=torch.float16)
    x[3] = 1
    assert tcg.spmm(g, x, reduce="mean")[0].item() == pytest.approx(1 / 7, rel=1e-3)


def test_half_precision_sum_is_accumulated_in_float32_and_overflows_to_inf():
    ones = torch.stack([torch.arange(5_000), torch.zeros(5_000, dtype=torch.int64)])
    g = tcg.TCGraph.from_edge_index(ones, 5_000)
    assert tcg.spmm(g, torch.ones(5_000, 1, dtype=torch.float16))[0].item() == 5_000  # float16 alone stops at 2,048
    assert tcg.spmm(g, torch.full((5_000, 1), 100.0, dtype=torch.float16))[0].item() == INF


def test_thousands_of_empty_rows():
    edge_index = torch.stack([torch.arange(50), torch.full((50,), 40_000)])
    g = tcg.TCGraph.from_edge_index(edge_index, 63_001)
    x = randn(63_001, 3).requires_grad_()
    y = tcg.spmm(g, x)
    torch.testing.assert_close(y[40_000], x[:50].sum(0))
    assert y.count_nonzero() == 3
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, (torch.arange(63_001) < 50).double()[:, None].expand(-1, 3))
    assert g.stats.blocks == 7


LAYOUTS = {
    "column-major": lambda x: x.t().contiguous().t(),
    "every second column": lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    "every second row": lambda x: x.repeat_interleave(2, dim=0)[::2],
    "a slice with an offset": lambda x: torch.cat([x, x])[x.shape[0] :],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_strides_of_the_features_do_not_matter(layout):
    edge_index, x = random_edges(), randn(20, 6)
    g, view = tcg.TCGraph.from_edge_index(edge_index, 20), layout(x)
    assert torch.equal(view, x)
    for reduce in REDUCES:
        assert torch.equal(tcg.spmm(g, view, reduce=reduce), tcg.spmm(g, x, reduce=reduce))
    assert torch.equal(tcg.sddmm(g, view, view), tcg.sddmm(g, x, x))


def test_expanded_features_weights_and_gradients():
    edge_index = random_edges()
    g = tcg.TCGraph.from_edge_index(edge_index, 20)
    row, one = randn(1, 6).requires_grad_(), torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    y = tcg.spmm(g, row.expand(20, 6), one.expand(90))
    degree = torch.bincount(edge_index[1], minlength=20).double()
    torch.testing.assert_close(y, 2 * degree[:, None] * row)
    y.sum().backward()  # its gradient is expanded, too
    torch.testing.assert_close(row.grad, torch.full((1, 6), 180.0, dtype=torch.float64))
    torch.testing.assert_close(one.grad, 90 * row.detach().sum())


def test_permuted_heads():
    edge_index = random_edges()
    g = tcg.TCGraph.from_edge_index(edge_index, 20)
    x, w = randn(20, 3, 4), randn(90, 3)
    assert torch.equal(tcg.spmm(g, x.transpose(1, 2).contiguous().transpose(1, 2), w), tcg.spmm(g, x, w))
    assert torch.equal(tcg.spmm(g, x, w.t().contiguous().t()), tcg.spmm(g, x, w))


# values that must stay where they are

# 0 → 1, 1 → 2, 2 → 0, 2 → 2; 3 reaches nobody and nobody reaches 3
SPREAD = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 2]])


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("reduce", REDUCES)
def test_bad_features_reach_only_their_neighbours(bad, reduce):
    g = tcg.TCGraph.from_edge_index(SPREAD, 4)
    x = torch.ones(4, 9)
    x[3], x[1, 4] = bad, bad
    y = tcg.spmm(g, x, reduce=reduce)
    touched = torch.zeros(4, 9, dtype=torch.bool)
    touched[2, 4] = True
    assert y[~touched].isfinite().all()
    assert y[2, 4].isnan() if bad != bad else y[2, 4] == {
        "sum": bad, "mean": bad, "max": max(bad, 1.0), "min": min(bad, 1.0)
    }[reduce]  # fmt: skip


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_bad_weights_reach_only_their_target(bad):
    g = tcg.TCGraph.from_edge_index(SPREAD, 4)
    for reduce in REDUCES:
        y = tcg.spmm(g, torch.ones(4, 3), torch.tensor([1.0, 1.0, bad, 1.0]), reduce=reduce)
        assert y[1:].isfinite().all()
        assert torch.equal(y[0], torch.full((3,), bad)) or (bad != bad and y[0].isnan().all())


def test_a_zero_weight_does_not_hide_what_it_multiplies():
    g = tcg.TCGraph.from_edge_index(SPREAD, 4)
    x = torch.tensor([[1.0], [INF], [1.0], [1.0]])
    y = tcg.spmm(g, x, torch.tensor([0.0, 0.0, -0.0, 0.0]))
    assert y[2].isnan()  # 0 · Inf, as in a dense product
    assert y[[0, 1, 3]].tolist() == [[0.0], [0.0], [0.0]]


@pytest.mark.parametrize("bad", [NAN, INF])
def test_sddmm_and_softmax_keep_bad_values_to_their_edges(bad):
    g = tcg.TCGraph.from_edge_index(SPREAD, 4)
    a = torch.ones(4, 5)
    a[1, 2] = a[3, 3] = bad
    out = tcg.sddmm(g, a, torch.ones(4, 5))
    assert out[1:].tolist() == [5.0, 5.0, 5.0]
    assert not out[0].isfinite()
    share = tcg.edge_softmax(g, torch.tensor([0.0, bad, 0.0, 0.0]))
    assert share[[0, 2]].tolist() == [1.0, 1.0]
    assert share[[1, 3]].isnan().any()


def test_bad_gradients_reach_only_their_sources():
    g = tcg.TCGraph.from_edge_index(SPREAD, 4)
    x = torch.ones(4, 2, requires_grad=True)
    tcg.spmm(g, x).backward(torch.tensor([[NAN, 1.0], [1.0, 1.0], [1.0, 1.0], [NAN, NAN]]))
    assert x.grad[2].isnan().tolist() == [True, False]
    assert x.grad[[0, 1, 3]].isfinite().all()


def test_a_target_whose_edges_are_all_removed_has_no_attention():
    g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1, 2], [0, 0, 1]]), 3)
    logits = torch.tensor([[-INF], [-INF], [0.5]], requires_grad=True)
    zero, h = torch.zeros(3, 1), torch.ones(3, 1, 2)
    out, alpha = tcg.gat_attention(g, h, zero, zero, edge_logit=logits, return_attention=True)
    assert alpha.tolist() == tcg.edge_softmax(g, logits).tolist() == [[0.0], [0.0], [1.0]]
    assert out[:, 0, 0].tolist() == [0.0, 1.0, 0.0]
    assert torch.autograd.grad(tcg.edge_softmax(g, logits).square().sum(), logits)[0].isfinite().all()


def test_extremum_of_equal_infinities_is_not_nan():
    g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1], [0, 0]]), 2)
    x = torch.full((2, 1), -INF, requires_grad=True)
    y = tcg.spmm(g, x, reduce="max")
    assert y.tolist() == [[-INF], [0.0]]
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [[1.0], [0.0]]


def test_more_duplicates_than_the_matrix_has_cells():
    torch.manual_seed(0)
    edges = torch.stack([torch.randint(0, 4, (500,)), torch.randint(0, 3, (500,))])
    graph = tcg.TCGraph.from_edge_index(edges, (4, 3))
    a, b = torch.randn(3, 2, 5), torch.randn(4, 2, 5)
    torch.testing.assert_close(tcg.sddmm(graph, a, b), (a[edges[1]] * b[edges[0]]).sum(-1))
    weight = torch.rand(500, requires_grad=True)
    tcg.spmm(graph, b[:, 0], weight).sum().backward()
    torch.testing.assert_close(weight.grad, b[:, 0].sum(-1)[edges[0]])


def test_forward_mode_says_that_it_has_no_rule():
    graph = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 2)
    x = torch.randn(2, 3)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises((RuntimeError, NotImplementedError)):
            tcg.spmm(graph, dual)
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.func.jvp(lambda z: tcg.spmm(graph, z), (x,), (x,))
