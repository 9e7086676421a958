"""Fused attention against its reference: values, gradients, dropout, memory, and the machinery of torch.library."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable

import pytest
import torch
import torch_tcgnn as tcg
from torch import Tensor
from torch_tcgnn import reference
from torch_tcgnn.kernels.cpu import chunk
from torch_tcgnn.ops.attention import ADDITIVE, DOT, GATV2

SOURCES, TARGETS = 6, 5
PAIRS = [(0, 1), (1, 1), (0, 1), (5, 1), (4, 0), (4, 0), (2, 3), (3, 3), (1, 4), (0, 4), (2, 4), (5, 0)]
"""Directed, duplicates (0→1, 4→0), self loops (1→1, 3→3), target 2 without edges; not sorted by target."""

FORMS = ["gat", "gatv2", "dot"]
OPS = {"gat": ADDITIVE, "gatv2": GATV2, "dot": DOT}
EDGES = [False, True]


def graph(pairs: list[tuple[int, int]] = PAIRS, sources: int = SOURCES, targets: int = TARGETS) -> tcg.TCGraph:
    edge_index = torch.tensor(pairs).t().reshape(2, -1).long()
    return tcg.TCGraph.from_edge_index(edge_index, (sources, targets))


def operands(
    form: str, g: tcg.TCGraph, heads: int = 2, width: int = 3, edges: bool = False, dtype: torch.dtype = torch.float64
) -> list[Tensor | None]:
    rng = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype)

    k, m, e = g.num_cols, g.num_rows, g.num_edges
    shapes = {
        "gat": [(k, heads, width), (k, heads), (m, heads), (e, heads)],
        "gatv2": [(k, heads, width), (m, heads, width), (heads, width), (e, heads, width)],
        "dot": [(m, heads, width), (k, heads, width), (k, heads, width), (e, heads, width)],
    }[form]
    return [normal(*shape) for shape in shapes[:3]] + [normal(*shapes[3]) if edges else None]


def attend(form: str, g: tcg.TCGraph, tensors: list[Tensor | None], **options: object) -> Tensor:
    a, b, c, edge = tensors
    if form == "gat":
        return tcg.gat_attention(g, a, b, c, edge_logit=edge, **options)
    call = tcg.gatv2_attention if form == "gatv2" else tcg.dot_attention
    return call(g, a, b, c, edge=edge, **options)


def expected_logits(form: str, g: tcg.TCGraph, tensors: list[Tensor | None]) -> Tensor:
    col, row = g.to_edge_index()
    a, b, c, edge = tensors
    if form == "gat":
        return reference.additive_logits(row, col, b, c, edge, 0.2)
    if form == "gatv2":
        return reference.gatv2_logits(row, col, a, b, c, edge, 0.2)
    return reference.dot_logits(row, col, a, b, edge, a.shape[-1] ** -0.5)


def expected(form: str, g: tcg.TCGraph, tensors: list[Tensor | None]) -> Tensor:
    col, row = g.to_edge_index()
    value = tensors[2] if form == "dot" else tensors[0]
    edge = tensors[3] if form == "dot" else None
    return reference.attention(row, col, value, expected_logits(form, g, tensors), g.num_rows, edge)


def leaves(tensors: list[Tensor | None]) -> list[Tensor | None]:
    return [None if t is None else t.detach().clone().requires_grad_() for t in tensors]


def gradients(out: Tensor, tensors: list[Tensor | None]) -> list[Tensor]:
    upstream = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    return list(torch.autograd.grad(out, [t for t in tensors if t is not None], upstream))


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("heads, width", [(1, 1), (1, 17), (2, 3), (3, 8), (8, 5)])
def test_output_equals_reference(form: str, edges: bool, heads: int, width: int) -> None:
    g = graph()
    tensors = operands(form, g, heads, width, edges)
    torch.testing.assert_close(attend(form, g, tensors), expected(form, g, tensors), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("form", FORMS)
def test_gradients_equal_those_of_the_reference(form: str, edges: bool) -> None:
    g = graph()
    ours, theirs = (leaves(operands(form, g, 3, 5, edges)) for _ in range(2))
    for got, want in zip(
        gradients(attend(form, g, ours), ours), gradients(expected(form, g, theirs), theirs), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_low_precision_is_computed_in_float32(form: str, dtype: torch.dtype, tolerance: float) -> None:
    g = graph()
    tensors = leaves(operands(form, g, 2, 9, True, dtype))
    wide = leaves([t.double() for t in tensors])
    out, want = attend(form, g, tensors), expected(form, g, wide)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)
    for got, truth in zip(gradients(out, tensors), gradients(want, wide), strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), truth, rtol=4 * tolerance, atol=4 * tolerance)


def test_operands_of_several_dtypes_keep_their_dtypes() -> None:
    g = graph()
    h, src, dst, _ = operands("gat", g)
    tensors = leaves([h.half(), src.float(), dst.double(), None])
    out = attend("gat", g, tensors)
    assert out.dtype == torch.float16
    assert [t.dtype for t in gradients(out, tensors)] == [torch.float16, torch.float32, torch.float64]


@pytest.mark.parametrize("held_bytes", [0, 600])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("form", FORMS)
def test_many_chunks_that_hold_little_give_what_one_chunk_gives(
    form: str, edges: bool, dropout: float, held_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 bytes are room for the weights and gradients of logits at twelve edges, and for nothing of their features."""
    g = graph()

    def step() -> tuple[Tensor, list[Tensor]]:
        torch.manual_seed(2)
        tensors = leaves(operands(form, g, edges=edges))
        out = attend(form, g, tensors, dropout=dropout, training=True)
        return out, gradients(out, tensors)

    whole = step()
    monkeypatch.setattr("torch_tcgnn.kernels.cpu.chunk.CHUNK_ELEMENTS", 1)
    monkeypatch.setattr("torch_tcgnn.kernels.cpu.attention.HELD_BYTES", held_bytes)
    torch.testing.assert_close(step(), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_past_the_dispatcher_and_through_it_give_the_same(form: str) -> None:
    g = graph()
    ours, theirs = (leaves(operands(form, g, edges=True)) for _ in range(2))
    op = getattr(torch.ops.torch_tcgnn, f"{OPS[form].name}_attention")
    factor = 1 / math.sqrt(3) if form == "dot" else 0.2
    out = attend(form, g, ours)
    other, _ = op(g.operands(), g.t().operands(), *theirs, factor, 0.0, torch.empty(0, dtype=torch.int64))
    assert type(out.grad_fn).__name__ == type(other.grad_fn).__name__ == "AttentionBackward"
    torch.testing.assert_close(out, other, rtol=0, atol=0)
    torch.testing.assert_close(gradients(out, ours), gradients(other, theirs), rtol=0, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_rows_far_apart_are_normalised_by_their_own_maximum(form: str) -> None:
    """One maximum for all would leave other rows nothing: exp(−800) is 0 in float64."""
    g = graph()
    ours, theirs = (operands(form, g, edges=True) for _ in range(2))
    for tensors in (ours, theirs):
        tensors[3][[1, 4, 5]] *= 2000.0
    spread = expected_logits(form, g, ours)
    assert spread.max() - spread.min() > 800
    ours, theirs = leaves(ours), leaves(theirs)
    out, want = attend(form, g, ours), expected(form, g, theirs)
    torch.testing.assert_close(out, want, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradients(out, ours), gradients(want, theirs), rtol=1e-9, atol=1e-9)


def test_what_kernels_keep_with_a_graph_goes_when_it_goes() -> None:
    g = graph()
    tensors = leaves(operands("gat", g))
    attend("gat", g, tensors).sum().backward()
    kept = [weakref.ref(x.prepared()) for x in (g, g.t())]
    assert all(ref() in chunk._derived for ref in kept)
    del g
    gc.collect()
    assert all(ref() is None for ref in kept)


# Values known beforehand


def test_gat_logits_of_a_node_with_two_edges() -> None:
    g = graph([(0, 2), (1, 2)], 3, 3)
    src, dst = torch.tensor([[1.0], [-2.0], [0.0]]), torch.tensor([[0.0], [0.0], [0.5]])
    _, alpha = tcg.gat_attention(g, torch.ones(3, 1, 1), src, dst, return_attention=True)
    torch.testing.assert_close(alpha.flatten(), torch.tensor([0.858149, 0.141851]), atol=1e-6, rtol=0)


def test_agnn_of_four_nodes() -> None:
    g = graph([(1, 0), (2, 0), (3, 1)], 4, 4).with_self_loops()
    x = torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0], [0.0, 0.0]])
    want = torch.tensor([[1.4745861, 2.2649040], [0.0, 1.4621172], [1.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(tcg.cosine_attention(g, x, torch.tensor([1.0])), want, atol=1e-6, rtol=0)
    three = tcg.cosine_attention(g, x.unsqueeze(1), 1.0)
    torch.testing.assert_close(three.squeeze(1), want, atol=1e-6, rtol=0)


def test_agnn_with_beta_zero_is_the_mean_of_the_neighbourhood() -> None:
    g = graph([*PAIRS, (5, 5)], 6, 6)
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(tcg.cosine_attention(g, x, 0.0), tcg.spmm(g, x, reduce="mean"))


def test_dot_with_zero_queries_is_the_mean_of_the_values() -> None:
    g = graph()
    _, k, v, _ = operands("dot", g, 2, 4)
    q = torch.zeros(g.num_rows, 2, 4, dtype=torch.float64)
    torch.testing.assert_close(tcg.dot_attention(g, q, k, v), tcg.spmm(g, v, reduce="mean"))


@pytest.mark.parametrize("form", FORMS)
def test_constant_values_stay_constant_and_isolated_targets_give_zero(form: str) -> None:
    g = graph()
    tensors = operands(form, g)
    tensors[2 if form == "dot" else 0].fill_(3.25)
    want = torch.full((g.num_rows, 2, 3), 3.25, dtype=torch.float64)
    want[2] = 0
    torch.testing.assert_close(attend(form, g, tensors), want)


def test_values_may_have_another_width_than_keys_and_scale_is_a_factor() -> None:
    g = graph()
    q, k, _, _ = operands("dot", g, 2, 3)
    v = torch.arange(6 * 2 * 5, dtype=torch.float64).view(6, 2, 5)
    col, row = g.to_edge_index()
    want = reference.attention(row, col, v, reference.dot_logits(row, col, q, k, None, 0.7), g.num_rows)
    torch.testing.assert_close(tcg.dot_attention(g, q, k, v, scale=0.7), want)


@pytest.mark.parametrize("form", FORMS)
def test_large_logits_do_not_overflow(form: str) -> None:
    g = graph()
    tensors = operands(form, g, dtype=torch.float32)
    tensors = [None if t is None else t * 300 for t in tensors]
    out = attend(form, g, tensors)
    assert out.isfinite().all()
    wide = [None if t is None else t.double() for t in tensors]
    torch.testing.assert_close(out.double(), expected(form, g, wide), rtol=2e-2, atol=1e-3)


def test_minus_infinity_removes_an_edge_and_a_target_without_others_gives_zero() -> None:
    g = graph()
    h, src, dst, edge = operands("gat", g, edges=True)
    gone = torch.tensor([0, 6, 7])  # one edge of target 1, all edges of target 3
    masked = edge.index_fill(0, gone, float("-inf"))
    kept = [i for i in range(len(PAIRS)) if i not in gone.tolist()]
    smaller = graph([PAIRS[i] for i in kept])
    tensors = leaves([h, src, dst, masked])
    out = attend("gat", g, tensors)
    torch.testing.assert_close(out, tcg.gat_attention(smaller, h, src, dst, edge_logit=edge[kept]))
    assert all(grad.isfinite().all() for grad in gradients(out, tensors))


@pytest.mark.parametrize("form", FORMS)
def test_nan_reaches_only_targets_that_touch_it(form: str) -> None:
    g = graph()
    tensors = operands(form, g)
    for t in tensors[:2] if form == "gat" else tensors[:1] if form == "gatv2" else tensors[1:3]:
        t[3] = float("nan")  # source 3 enters target 3 only
    out = attend(form, g, tensors)
    assert out[3].isnan().all()
    assert out[[0, 1, 2, 4]].isfinite().all()


# lse, weights, dropout


@pytest.mark.parametrize("form", FORMS)
def test_lse_is_the_logarithm_of_the_denominator(form: str) -> None:
    g = graph()
    tensors = operands(form, g, edges=True)
    factor = 3**-0.5 if form == "dot" else 0.2
    op = getattr(torch.ops.torch_tcgnn, f"{OPS[form].name}_attention")
    _, lse = op(g.operands(), [], *tensors, factor, 0.0, torch.empty(0, dtype=torch.int64))
    denominator = reference.segment_sum(g.to_edge_index()[1], expected_logits(form, g, tensors).exp(), g.num_rows)
    torch.testing.assert_close(lse, denominator.log())
    assert (lse[2] == -math.inf).all()


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("form", FORMS)
def test_returned_weights_are_in_the_order_of_the_input_edges(form: str, edges: bool) -> None:
    g = graph()
    tensors = operands(form, g, edges=edges)
    out, alpha = attend(form, g, tensors, return_attention=True)
    want = reference.edge_softmax(g.to_edge_index()[1], expected_logits(form, g, tensors), g.num_rows)
    torch.testing.assert_close(alpha, want)
    torch.testing.assert_close(out, expected(form, g, tensors))


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("form", FORMS)
def test_dropout_is_the_same_in_output_weights_and_gradients(form: str, edges: bool) -> None:
    g = graph()
    ours, theirs = (leaves(operands(form, g, 3, 2, edges)) for _ in range(2))
    torch.manual_seed(3)
    out, alpha = attend(form, g, ours, dropout=0.4, training=True, return_attention=True)
    col, row = g.to_edge_index()
    full = reference.edge_softmax(row, expected_logits(form, g, theirs), g.num_rows)
    mask = (alpha != 0).double() / 0.6
    assert 0 < mask.count_nonzero() < mask.numel()
    torch.testing.assert_close(alpha, full * mask)
    message = theirs[2 if form == "dot" else 0][col]
    if edges and form == "dot":
        message = message + theirs[3]
    want = reference.segment_sum(row, message * (full * mask).unsqueeze(-1), g.num_rows)
    torch.testing.assert_close(out, want)
    for got, truth in zip(gradients(out, ours), gradients(want, theirs), strict=True):
        torch.testing.assert_close(got, truth, rtol=1e-10, atol=1e-12)


def test_manual_seed_reproduces_dropout_and_the_next_call_differs() -> None:
    g = graph()
    tensors = operands("gat", g, 8, 4)
    torch.manual_seed(5)
    first, second = (attend("gat", g, tensors, dropout=0.5, training=True) for _ in range(2))
    torch.manual_seed(5)
    assert torch.equal(first, attend("gat", g, tensors, dropout=0.5, training=True))
    assert not torch.equal(first, second)


def test_dropout_acts_in_training_only_and_one_drops_everything() -> None:
    g = graph()
    tensors = operands("gat", g)
    assert torch.equal(attend("gat", g, tensors, dropout=0.5), attend("gat", g, tensors))
    assert not attend("gat", g, tensors, dropout=1.0, training=True).any()


# Derivatives


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradcheck(form: str, edges: bool, dropout: float) -> None:
    g = graph()
    tensors = leaves(operands(form, g, 2, 2, edges))

    def call(*inputs: Tensor) -> Tensor:
        torch.manual_seed(11)
        return attend(form, g, [*inputs, *[None] * (4 - len(inputs))], dropout=dropout, training=True)

    assert torch.autograd.gradcheck(call, [t for t in tensors if t is not None])


def test_gradcheck_of_cosine_and_its_beta() -> None:
    g = graph([*PAIRS, (5, 5)], 6, 6)
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64, requires_grad=True)
    beta = torch.tensor([0.8], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, beta: tcg.cosine_attention(g, x, beta), (x, beta))


@pytest.mark.parametrize("form", FORMS)
def test_second_derivative(form: str) -> None:
    g = graph([(0, 1), (1, 1), (0, 1), (2, 0)], 3, 3)
    tensors = leaves(operands(form, g, 1, 2, True))

    def call(*inputs: Tensor) -> Tensor:
        torch.manual_seed(11)
        return attend(form, g, list(inputs), dropout=0.2, training=True)

    assert torch.autograd.gradgradcheck(call, tensors)


def test_one_tensor_in_several_places_collects_every_gradient() -> None:
    g = graph([*PAIRS, (5, 5)], 6, 6)
    x = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: tcg.dot_attention(g, x, x, x), (x,))
    assert torch.autograd.gradgradcheck(lambda x: tcg.dot_attention(g, x, x, x), (x,))


def test_gradient_flows_through_returned_weights() -> None:
    g = graph()
    src = operands("gat", g)[1].requires_grad_()
    h, _, dst, _ = operands("gat", g)

    def call(src: Tensor) -> Tensor:
        return tcg.gat_attention(g, h, src, dst, return_attention=True)[1]

    assert torch.autograd.gradcheck(call, (src,))


def test_only_wanted_gradients_are_given() -> None:
    g = graph()
    q, k, v, _ = operands("dot", g)
    v.requires_grad_()
    tcg.dot_attention(g, q, k, v).sum().backward()
    assert v.grad is not None
    assert q.grad is None


# Shapes at the margin


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "pairs, sources, targets", [([], 4, 3), ([], 0, 0), ([(0, 0)], 1, 1), ([(i, 0) for i in range(40)], 40, 7)]
)
def test_odd_graphs(form: str, pairs: list[tuple[int, int]], sources: int, targets: int) -> None:
    g = graph(pairs, sources, targets)
    tensors = leaves(operands(form, g, edges=True))
    out, want = attend(form, g, tensors), expected(form, g, tensors)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(gradients(out, tensors), gradients(want, tensors), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("heads, width", [(0, 4), (2, 0)])
def test_no_heads_or_no_features(form: str, heads: int, width: int) -> None:
    g = graph()
    tensors = leaves(operands(form, g, heads, width, edges=True))
    out = attend(form, g, tensors)
    assert out.shape == (TARGETS, heads, width)
    out.sum().backward()
    assert all(t.grad is not None and t.grad.shape == t.shape for t in tensors)


@pytest.mark.parametrize("form", FORMS)
def test_strided_operands(form: str) -> None:
    g = graph()
    tensors = [t.transpose(0, -1).contiguous().transpose(0, -1) for t in operands(form, g, edges=True)]
    assert not all(t.is_contiguous() for t in tensors)
    torch.testing.assert_close(attend(form, g, tensors), expected(form, g, tensors))


@pytest.mark.parametrize("form", FORMS)
def test_order_of_input_edges_does_not_matter(form: str) -> None:
    g = graph()
    order = torch.randperm(len(PAIRS), generator=torch.Generator().manual_seed(9))
    shuffled = graph([PAIRS[i] for i in order.tolist()])
    tensors = operands(form, g, edges=True)
    out = attend(form, shuffled, [*tensors[:3], tensors[3][order]])
    torch.testing.assert_close(out, attend(form, g, tensors), rtol=1e-12, atol=1e-12)


# Wrong calls


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda g, h, s, d: tcg.gat_attention(g, h[:, 0], s, d), ValueError, r"h must have 3 dimensions, .*\(6, 3\)"),
        (lambda g, h, s, d: tcg.gat_attention(g, h, s[:, :1], d), ValueError, r"alpha_src .*\(6, 2\).*got \(6, 1\)"),
        (lambda g, h, s, d: tcg.gat_attention(g, h, s, s), ValueError, r"alpha_dst must have 5 rows.*\(6, 2\)"),
        (lambda g, h, s, d: tcg.gat_attention(g, h, s.long(), d), TypeError, r"alpha_src.*torch\.int64"),
        (
            lambda g, h, s, d: tcg.gat_attention(g, h, s, d, edge_logit=s),
            ValueError,
            r"edge_logit must have 12 rows.*6",
        ),
        (lambda g, h, s, d: tcg.gat_attention(g, h, s, d, dropout=1.5), ValueError, r"dropout .*1\.5"),
        (lambda g, h, s, d: tcg.gatv2_attention(g, h, h[:5], h[:1, :, 0]), ValueError, r"att .*\(2, 3\).*\(1, 2\)"),
        (lambda g, h, s, d: tcg.gatv2_attention(g, h, h, h[0]), ValueError, r"right must have 5 rows.*\(6, 2, 3\)"),
        (lambda g, h, s, d: tcg.dot_attention(g, h[:5, :, :2], h, h), ValueError, r"q .*\(5, 2, 3\).*\(5, 2, 2\)"),
        (lambda g, h, s, d: tcg.dot_attention(g, h[:5], h, h[:, :1]), ValueError, r"v must have 2 heads.*\(6, 1, 3\)"),
        (lambda g, h, s, d: tcg.cosine_attention(g, h, 1.0), ValueError, r"as many targets as sources, got 5 and 6"),
    ],
)
def test_wrong_operands_are_named(call: Callable, error: type[Exception], message: str) -> None:
    g = graph()
    h, src, dst, _ = operands("gat", g)
    with pytest.raises(error, match=message):
        call(g, h, src, dst)


# torch.library and torch.compile


@pytest.mark.parametrize("form", FORMS)
def test_opcheck(form: str) -> None:
    g = graph()
    tensors = leaves(operands(form, g, 1, 3, edges=form != "gat"))
    op = getattr(torch.ops.torch_tcgnn, f"{OPS[form].name}_attention").default
    seed = torch.tensor([17])
    torch.library.opcheck(op, (g.operands(), g.t().operands(), *tensors, 0.3, 0.2, seed))
    plain = [None if t is None else t.detach() for t in tensors]
    out, lse = op(g.operands(), [], *plain, 0.3, 0.2, seed)
    backward = getattr(torch.ops.torch_tcgnn, f"{OPS[form].name}_attention_backward").default
    args = (g.operands(), g.t().operands(), *plain, 0.3, 0.2, seed, out, lse, torch.ones_like(out))
    torch.library.opcheck(backward, args, test_utils=("test_schema", "test_faketensor"))


def test_compiled_without_graph_breaks() -> None:
    g = graph([*PAIRS, (5, 5)], 6, 6)

    def every_form(g: tcg.TCGraph, x: Tensor, att: Tensor) -> Tensor:
        y = tcg.gat_attention(g, x, (x * att).sum(-1), (x * att).sum(-1))
        y = y + tcg.gatv2_attention(g, x, x, att) + tcg.dot_attention(g, x, x, x, dropout=0.5, training=False)
        return y + tcg.cosine_attention(g, x, 0.5)

    eager, compiled = (leaves([operands("gat", g)[0], operands("gatv2", g)[2]]) for _ in range(2))
    g.t()
    want = every_form(g, *eager)
    out = torch.compile(every_form, fullgraph=True, backend="aot_eager")(g, *compiled)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(gradients(out, compiled), gradients(want, eager))


def test_dropout_compiles_without_graph_breaks() -> None:
    g = graph()
    tensors = leaves(operands("gat", g))
    g.t()

    def step(*inputs: Tensor) -> Tensor:
        out, alpha = attend("gat", g, [*inputs, None], dropout=0.5, training=True, return_attention=True)
        return torch.cat([out.flatten(), alpha.flatten()])

    step_compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.manual_seed(1)
    got = step_compiled(*tensors[:3])
    torch.manual_seed(1)
    torch.testing.assert_close(got, step(*tensors[:3]))
    assert all(t.isfinite().all() for t in gradients(got, tensors))


@pytest.fixture(scope="module")
def dense_graph() -> tcg.TCGraph:
    """4,000 nodes and 600,000 edges."""
    edge_index = torch.randint(4_000, (2, 600_000), generator=torch.Generator().manual_seed(0))
    g = tcg.TCGraph.from_edge_index(edge_index, 4_000, validate=False)
    g.t().operands()
    return g


@pytest.mark.parametrize("form", FORMS)
def test_memory_does_not_grow_with_the_number_of_edges(
    form: str, dense_graph: tcg.TCGraph, peak_bytes: Callable[[Callable[[], object]], int]
) -> None:
    """A step needs less than 24 MiB beside tensors of node size; one ``[E, H]`` tensor would be 19 MB."""
    heads, width = 8, 4
    tensors = leaves(operands(form, dense_graph, heads, width, dtype=torch.float32))

    def step() -> None:
        attend(form, dense_graph, tensors, dropout=0.5, training=True).sum().backward()

    node_bytes = 4 * dense_graph.num_rows * heads * width
    assert peak_bytes(step) < 24 * 2**20 + 12 * node_bytes
