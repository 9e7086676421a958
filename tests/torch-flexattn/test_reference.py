"""The meaning of attention: values worked out beforehand, second opinions of PyTorch, gradients, and hard rows."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close
from torch_flexattn.mods import mask_mod, score_mod
from torch_flexattn.reference import attention, merge_attention

F64 = torch.float64
INF = math.inf


def causal(b, h, i, j):
    return i >= j


def strict(b, h, i, j):
    return i > j


def example(dtype=F64):
    """One head, four queries and keys of width 2, scale 1/√2."""
    q = [[1, 0], [0, 1], [1, 1], [2, -1]]
    k = [[1, 1], [0, 2], [-1, 0], [1, -1]]
    v = [[1, 0], [0, 1], [2, 2], [-1, 3]]
    return [torch.tensor([[x]], dtype=dtype, requires_grad=True) for x in (q, k, v)]


def near(actual, *expected):
    assert_close(actual.detach(), torch.tensor(expected, dtype=F64).view(actual.shape), rtol=0, atol=6e-11)


def random(*shape, seed=0, grad=True):
    x = torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return x.requires_grad_(grad)


def qkv(batch=2, heads=4, groups=2, q_len=5, kv_len=7, width=3, v_width=2, kv_batch=None):
    kv_batch = kv_batch or batch
    shapes = (batch, heads, q_len, width), (kv_batch, groups, kv_len, width), (kv_batch, groups, kv_len, v_width)
    return [random(*shape, seed=n) for n, shape in enumerate(shapes)]


# Known values


def test_causal_values():
    q, k, v = example()
    out, lse, largest = attention(q, k, v, mask_mod=causal)
    near(out[0, 0], [1, 0], [0.3302384507, 0.6697615493], [0.5848210501, 0.5848210501], [-0.5368028309, 2.3723852589])
    near(lse[0, 0], 0.7071067812, 1.8150470888, 2.1655698616, 2.3847633496)
    near(largest[0, 0], 0.7071067812, 1.4142135624, 1.4142135624, 2.1213203436)
    out.sum().backward()
    near(q.grad[0, 0, 2:], [-0.1697579033, -0.1697579033], [-0.0553146664, -0.2261740455])
    near(v.grad[0, 0], *[[x, x] for x in (1.9887760102, 1.1638815368, 0.0789410376, 0.7684014155)])


def test_alibi_values():
    out, lse, _ = attention(*example(), mask_mod=causal, score_mod=lambda s, b, h, i, j: s - 0.5 * (i - j))
    near(out[0, 0, 3], -0.8409050082, 2.8135503334)
    near(lse[0, 0], 0.7071067812, 1.6758554727, 1.5043132374, 2.2007266312)


def test_softcap_values():
    out, lse, _ = attention(*example(), mask_mod=causal, score_mod=lambda s, b, h, i, j: 2 * torch.tanh(s / 2))
    near(out[0, 0, 3], -0.3051332788, 2.0779981624)
    near(lse[0, 0, 3], 1.9986748098)


def test_values_of_a_mask_that_hides_the_query_itself():
    q, k, v = example()
    out, lse, largest = attention(q, k, v, mask_mod=strict)
    near(out[0, 0, 0], 0.0, 0.0)
    near(out[0, 0, 3], 1.0, 0.2900752293)
    assert lse[0, 0, 0] == largest[0, 0, 0] == -INF
    out.sum().backward()
    near(q.grad[0, 0, 0], 0.0, 0.0)
    near(v.grad[0, 0, 3], 0.0, 0.0)


def test_sink_values():
    out, _, _ = attention(*example(), mask_mod=causal, sinks=torch.tensor([0.3], dtype=F64))
    near(out[0, 0], [0.6003939368, 0], [0.2707321175, 0.5490758635], [0.5064227712] * 2, [-0.4774396378, 2.1100312695])


LOSS = torch.tensor([[1, 2], [3, -1], [0.5, 1], [-2, 1]], dtype=F64)


def test_gradient_values_of_a_relative_bias():
    bias = torch.zeros(7, dtype=F64, requires_grad=True)
    out, _, _ = attention(*example(), mask_mod=causal, score_mod=lambda s, b, h, i, j: s + bias[i - j + 3])
    (out * LOSS).sum().backward()
    near(bias.grad, 0, 0, 0, 0.4294156753, 0.8206814343, -0.2327247770, -1.0173723325)


def test_gradient_value_of_a_factor():
    t = torch.ones((), dtype=F64, requires_grad=True)
    out, _, _ = attention(*example(), mask_mod=causal, score_mod=lambda s, b, h, i, j: s * t)
    (out * LOSS).sum().backward()
    near(t.grad, 1.1833869851)


def test_division_rounds_down():
    t, w, o = 8, 4, 1
    tiles = mask_mod(lambda b, h, i, j: (j - o - t) // w == (i - o - t) // w)
    i, zero = torch.arange(24, dtype=torch.int32), torch.tensor(0)
    seen = tiles(zero, zero, i[:, None], i)
    assert seen.sum() == 90
    assert (
        (i - o - t).div(w, rounding_mode="trunc")[:, None] == (i - o - t).div(w, rounding_mode="trunc")
    ).sum() == 110


# Second opinions


@pytest.mark.parametrize("heads, groups", [(4, 4), (6, 2), (3, 1)])
def test_same_as_sdpa(heads, groups):
    q, k, v = qkv(heads=heads, groups=groups)
    out, _, _ = attention(q, k, v, mask_mod=causal, scale=0.3)
    seen = torch.ones(5, 7, dtype=torch.bool).tril()
    expected = scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=0.3, enable_gqa=True)
    assert_close(out, expected)
    weights = random(*out.shape, seed=9, grad=False)
    ours = torch.autograd.grad((out * weights).sum(), [q, k, v])
    theirs = torch.autograd.grad((expected * weights).sum(), [q, k, v])
    for a, b in zip(ours, theirs):
        assert_close(a, b)


def test_keys_of_one_batch_serve_all():
    q, k, v = qkv(kv_batch=1)
    out, lse, _ = attention(q, k, v, mask_mod=causal)
    expected, expected_lse, _ = attention(q, k.repeat(2, 1, 1, 1), v.repeat(2, 1, 1, 1), mask_mod=causal)
    assert_close(out, expected)
    assert_close(lse, expected_lse)
    assert torch.autograd.grad(out.sum(), k)[0].shape == k.shape


TABLE = torch.randn(4, 20, dtype=torch.float32, generator=torch.Generator().manual_seed(3))
OF_BATCH = torch.tensor([2, 4], dtype=torch.int32)


@pytest.mark.parametrize(
    "score, mask",
    [
        (lambda s, b, h, i, j: s + TABLE[h, i - j + 9], causal),
        (lambda s, b, h, i, j: torch.where(i >= j, s * TABLE[h, b], -INF), lambda b, h, i, j: j < 40),
        (lambda s, b, h, i, j: 3 * torch.tanh(s / 3), lambda b, h, i, j: (i // 3 == j // 3) | (j < OF_BATCH[b])),
        (lambda s, b, h, i, j: s - (i - j).abs() * TABLE[h, 0], lambda b, h, i, j: (i - j) % 3 != 1),
    ],
    ids=["table", "written minus infinity", "softcap and tiles", "slopes"],
)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_same_as_flex_attention_of_pytorch(score, mask):
    q, k, v = (x.detach() for x in qkv(q_len=7))
    out, lse, _ = attention(q, k, v, score_mod=score, mask_mod=mask)
    blocks = torch_flex.create_block_mask(mask, 2, 4, 7, 7, device="cpu")
    expected, aux = torch_flex.flex_attention(
        q, k, v, score_mod=score, block_mask=blocks, enable_gqa=True, return_aux=torch_flex.AuxRequest(lse=True)
    )
    assert_close(out, expected)
    assert_close(lse.float(), aux.lse.float())


# Gradients against the formulas that kernels follow


@pytest.mark.parametrize("with_sinks", [False, True])
def test_gradients_follow_the_formulas_of_kernels(with_sinks):
    q, k, v = qkv(heads=4, groups=2)
    sinks = random(4, seed=5) if with_sinks else None
    z = (torch.rand(2, 4, 5, 7, generator=torch.Generator().manual_seed(1)) > 0.3).double() / 0.7
    bias = random(4, 12, seed=6)
    seen = torch.ones(5, 7, dtype=torch.bool).tril(-1)
    mod = score_mod(lambda s, b, h, i, j: s * s + bias[h, i - j + 6])
    out, lse, _ = attention(q, k, v, score_mod=mod, mask_mod=strict, sinks=sinks, dropout_mask=z)
    d_out, d_lse = random(*out.shape, seed=7, grad=False), random(*lse.shape, seed=8, grad=False)
    d_lse[:, :, 0] = 0  # nothing is visible there; without a sink lse is −inf
    total = (out * d_out).sum() + (lse[:, :, 1:] * d_lse[:, :, 1:]).sum()
    inputs = [q, k, v, bias] + ([sinks] if with_sinks else [])
    grads = torch.autograd.grad(total, inputs)

    scale = 3**-0.5
    k4, v4 = (t.detach().repeat_interleave(2, 1) for t in (k, v))
    s = scale * (q.detach() @ k4.mT)
    i, j = torch.arange(5)[:, None], torch.arange(7)
    modified = torch.where(seen, s * s + bias.detach()[:, i - j + 6], -INF)
    p = torch.where(seen, (modified - lse.detach().unsqueeze(-1)).exp(), 0)
    delta = (out.detach() * d_out).sum(-1) - d_lse
    dp = z * (d_out @ v4.mT)
    d_modified = p * (dp - delta.unsqueeze(-1))
    ds = d_modified * 2 * s

    def by_group(x):
        return x.unflatten(1, (2, 2)).sum(2)

    assert_close(grads[0], scale * ds @ k4)
    assert_close(grads[1], by_group(scale * ds.mT @ q.detach()))
    assert_close(grads[2], by_group((p * z).mT @ d_out))
    d_bias = torch.zeros(4, 12, dtype=F64)
    for head in range(4):
        d_bias[head].index_add_(0, (i - j + 6).flatten(), d_modified[:, head].sum(0).flatten())
    assert_close(grads[3], d_bias)
    if with_sinks:
        at_sink = torch.sigmoid(sinks.detach()[:, None] - torch.where(lse > -INF, _lse_without(modified), 0))
        at_sink = torch.where(seen.any(-1), at_sink, 1)
        assert_close(grads[4], (at_sink * (d_lse - (out.detach() * d_out).sum(-1))).sum((0, 2)))


def _lse_without(modified):
    return torch.where(modified.isfinite().any(-1), modified.logsumexp(-1), 0)


@pytest.mark.parametrize(
    "capture, score",
    [
        ((), lambda t: lambda s, b, h, i, j: s * t),
        ((2,), lambda t: lambda s, b, h, i, j: s * t[h] + t[b]),
        ((3,), lambda t: lambda s, b, h, i, j: s + torch.sin(t[i])),
        ((4,), lambda t: lambda s, b, h, i, j: s * torch.sigmoid(t[j])),
        ((2, 2, 3, 4), lambda t: lambda s, b, h, i, j: s + t[b, h, i, j]),
        ((2, 6), lambda t: lambda s, b, h, i, j: s + t[h, i - j + 3]),
        ((5,), lambda t: lambda s, b, h, i, j: s + t[(i * 3 + j * 2) % 5]),
        ((4,), lambda t: lambda s, b, h, i, j: s * t[i] + t[j] * t[(i + j) % 4]),
        ((2,), lambda t: lambda s, b, h, i, j: t[h] + 0.1 * j),
    ],
    ids=["scalar", "heads", "queries", "keys", "pairs", "distances", "hashed", "several reads", "without score"],
)
def test_gradcheck_of_captures(capture, score):
    q, k, v = qkv(heads=2, groups=1, q_len=3, kv_len=4, width=2)
    t = random(*capture, seed=4)

    def run(q, k, v, t):
        out, lse, _ = attention(q, k, v, score_mod=score(t), mask_mod=lambda b, h, i, j: (j <= i + 1) & (i != 2))
        return out, lse[:, :, :2]

    assert gradcheck(run, [q, k, v, t])


def test_gradcheck_of_sinks_and_dropout():
    q, k, v = qkv(heads=2, groups=1, q_len=3, kv_len=4, width=2)
    z = torch.tensor([2.0, 0, 2, 2], dtype=F64)

    def run(q, k, v, sinks):
        return attention(q, k, v, mask_mod=strict, sinks=sinks, dropout_mask=z)[:2]

    assert gradcheck(run, [q, k, v, random(2, seed=3)])


def test_second_derivatives():
    q, k, v = qkv(batch=1, heads=2, groups=1, q_len=2, kv_len=3, width=2)
    bias, sinks = random(4, seed=2), random(2, seed=3)

    def run(q, k, v, bias, sinks):
        mod = score_mod(lambda s, b, h, i, j: torch.tanh(s) * bias[i - j + 2])
        return attention(q, k, v, score_mod=mod, mask_mod=strict, sinks=sinks)[:2]

    assert gradgradcheck(run, [q, k, v, bias, sinks])


def test_the_largest_score_has_no_gradient():
    q, k, v = qkv()
    out, lse, largest = attention(q, k, v)
    assert out.requires_grad
    assert lse.requires_grad
    assert not largest.requires_grad


def test_gradients_have_the_type_of_the_inputs():
    q, k, v = (x.detach().bfloat16().requires_grad_() for x in qkv())
    out, _, _ = attention(q, k, v)
    assert out.dtype == F64
    out.sum().backward()
    assert q.grad.dtype == k.grad.dtype == v.grad.dtype == torch.bfloat16


# Rows without keys, scores that are no numbers


def all_finite(*tensors):
    return all(bool(t.isfinite().all()) for t in tensors)


def test_rows_that_see_nothing_give_zero_and_no_gradient():
    q, k, v = qkv()
    out, lse, largest = attention(q, k, v, mask_mod=lambda b, h, i, j: (i != 2) & (h != 1))
    assert (out[:, :, 2] == 0).all()
    assert (out[:, 1] == 0).all()
    assert (lse[:, :, 2] == -INF).all()
    assert (largest[:, 1] == -INF).all()
    grads = torch.autograd.grad(out.sum() + lse.exp().sum(), [q, k, v])
    assert all_finite(*grads)
    assert (grads[0][:, :, 2] == 0).all()
    assert (grads[0][:, 1] == 0).all()


def test_minus_infinity_written_by_a_score_mod_is_a_mask():
    q, k, v = qkv()
    bias = random(5, seed=1)

    def plain(s, b, h, i, j):
        return s * bias[i]

    def hiding(s, b, h, i, j):
        return torch.where((i >= j) & (i != 3), s * bias[i], -INF)

    masked = attention(q, k, v, score_mod=plain, mask_mod=lambda b, h, i, j: (i >= j) & (i != 3))
    written = attention(q, k, v, score_mod=hiding)
    for a, b in zip(masked, written):
        assert torch.equal(a, b)
    grads = [torch.autograd.grad(x[0].sum() + x[1].exp().sum(), [q, k, v, bias]) for x in (masked, written)]
    for a, b in zip(*grads):
        assert_close(a, b)
        assert a.isfinite().all()


def test_scores_that_are_no_numbers_do_not_matter_where_masked():
    q, k, v = qkv()
    slope = random(4, seed=1)

    def score(s, b, h, i, j):
        return s - slope[h] * torch.log((i - j).float())  # −∞ and NaN at and after the query

    out, lse, _ = attention(q, k, v, score_mod=score, mask_mod=strict)
    assert out.isfinite().all()
    assert all_finite(*torch.autograd.grad(out.sum() + lse.exp().sum(), [q, k, v, slope]))


def test_minus_infinity_with_an_infinite_derivative_has_no_gradient():
    q, k, v = qkv()
    keep = torch.tensor([1.0, 0, 0.5, 1, 0, 1, 1], dtype=F64, requires_grad=True)
    out, _, _ = attention(q, k, v, score_mod=lambda s, b, h, i, j: s + torch.log(keep[j]))
    grads = torch.autograd.grad(out.sum(), [q, k, v, keep])
    assert all_finite(*grads)
    assert (grads[3][[1, 4]] == 0).all()
    assert (grads[3][[0, 2]] != 0).all()


def test_nan_of_an_invisible_key_reaches_nothing():
    q, k, v = qkv(q_len=7)
    expected = attention(q, k, v, mask_mod=lambda b, h, i, j: (i >= j) & (j != 3))
    for x, y in ((k, v), (v, k)):
        bad = x.detach().clone()
        bad[:, :, 3] = math.nan
        bad.requires_grad_()
        q2, y2 = q.detach().clone().requires_grad_(), y.detach().clone().requires_grad_()
        pair = (bad, y2) if x is k else (y2, bad)
        out, lse, _ = attention(q2, *pair, mask_mod=lambda b, h, i, j: (i >= j) & (j != 3))
        assert_close(out, expected[0])
        assert_close(lse, expected[1])
        assert all_finite(*torch.autograd.grad(out.sum() + lse.sum(), [q2, *pair]))


def test_nan_of_a_key_reaches_the_rows_that_see_it():
    q, k, v = qkv(q_len=7)
    bad = k.detach().clone()
    bad[0, 0, 4] = math.nan
    out, _, _ = attention(q, bad, v, mask_mod=causal)
    nan = out.isnan().all(-1)
    expected = torch.zeros(2, 4, 7, dtype=torch.bool)
    expected[0, :2, 4:] = True
    assert torch.equal(nan, expected)
    assert torch.equal(out.isnan().any(-1), expected)


def test_nan_of_a_query_stays_in_its_row():
    q, k, v = qkv(q_len=7)
    bad = q.detach().clone()
    bad[:, :, [0, 2]] = math.nan
    bad.requires_grad_()
    out, lse, _ = attention(bad, k, v, mask_mod=strict)
    expected, _, _ = attention(q, k, v, mask_mod=strict)
    assert (out[:, :, 0] == 0).all()  # it sees nothing
    assert out[:, :, 2].isnan().all()
    assert_close(out[:, :, [1, 3, 4, 5, 6]], expected[:, :, [1, 3, 4, 5, 6]])
    grads = torch.autograd.grad(out.sum() + lse[:, :, 1:].sum(), [bad, k, v])
    assert grads[0][:, :, [0, 1, 3, 4, 5, 6]].isfinite().all()
    assert grads[1][:, :, 2:].isfinite().all()
    assert grads[2][:, :, 2:].isfinite().all()


def test_infinity_makes_its_row_nan():
    q, k, v = qkv(q_len=7)
    out, _, _ = attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.where((i == 2) & (j == 1), INF, s))
    assert out[:, :, 2].isnan().all()
    assert out[:, :, [0, 1, 3, 4, 5, 6]].isfinite().all()


def test_a_row_with_a_sink_alone_is_zero():
    q, k, v = qkv()
    sinks = random(4, seed=3)
    out, lse, largest = attention(q, k, v, mask_mod=strict, sinks=sinks)
    assert (out[:, :, 0] == 0).all()
    assert_close(lse[:, :, 0], sinks.expand(2, 4))
    assert (largest[:, :, 0] == -INF).all()
    (grad,) = torch.autograd.grad(lse[:, :, 0].sum(), sinks)
    assert_close(grad, torch.full((4,), 2.0, dtype=F64))


def test_a_sink_of_minus_infinity_is_none():
    q, k, v = qkv()
    sinks = torch.full((4,), -INF, dtype=F64, requires_grad=True)
    out, lse, _ = attention(q, k, v, mask_mod=strict, sinks=sinks)
    expected, expected_lse, _ = attention(q, k, v, mask_mod=strict)
    assert_close(out, expected)
    assert_close(lse, expected_lse)
    assert (torch.autograd.grad(out.sum(), sinks)[0] == 0).all()


@pytest.mark.parametrize("q_len, kv_len", [(0, 4), (3, 0), (0, 0)])
def test_nothing_to_attend_to(q_len, kv_len):
    q, k, v = qkv(q_len=q_len, kv_len=kv_len)
    out, lse, largest = attention(q, k, v, mask_mod=causal, score_mod=lambda s, b, h, i, j: s * 2)
    assert out.shape == (2, 4, q_len, 2)
    assert (out == 0).all()
    assert (lse == -INF).all()
    assert (largest == -INF).all()


# Offsets, lengths, tables


def test_offsets_shift_the_queries():
    q, k, v = qkv(q_len=7)
    bias = random(7, seed=1)
    mods = {"mask_mod": causal, "score_mod": lambda s, b, h, i, j: s + bias[i]}
    whole, lse, _ = attention(q, k, v, **mods)
    part, part_lse, _ = attention(q[:, :, 3:5], k, v, q_offset=3, **mods)
    assert_close(part, whole[:, :, 3:5])
    assert_close(part_lse, lse[:, :, 3:5])
    each = torch.stack([q[0, :, 1:3], q[1, :, 4:6]])
    out, _, _ = attention(each, k, v, q_offset=torch.tensor([1, 4]), **mods)
    assert_close(out, torch.stack([whole[0, :, 1:3], whole[1, :, 4:6]]))


def test_keys_after_their_length_do_not_matter():
    q, k, v = qkv()
    lens = torch.tensor([4, 0], dtype=torch.int32)
    k, v = k.detach().clone(), v.detach().clone()
    k[0, :, 4:], v[0, :, 4:] = math.nan, INF
    out, lse, _ = attention(q, k, v, kv_lens=lens)
    expected, _, _ = attention(q[:1], k[:1, :, :4], v[:1, :, :4])
    assert_close(out[:1], expected)
    assert (out[1] == 0).all()
    assert (lse[1] == -INF).all()


def test_reading_a_table_out_of_range_matters_only_where_visible():
    q, k, v = qkv()
    table = random(5, seed=1)
    masked = attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[i - j], mask_mod=causal)
    assert masked[0].isfinite().all()
    with pytest.raises(IndexError, match="out of range"):
        attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[i + j], mask_mod=causal)
    start = torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(IndexError, match="out of range"):
        attention(q, k, v, mask_mod=lambda b, h, i, j: j >= start[i])
    assert attention(q, k, v, mask_mod=lambda b, h, i, j: (j >= start[i]) & (i < 2))[0].isfinite().all()


# Parts


@pytest.mark.parametrize("cuts", [(3,), (1, 2, 6), (0, 4), (2, 2, 7)])
def test_merging_parts_gives_the_whole(cuts):
    q, k, v = qkv(q_len=7)
    whole, lse, _ = attention(q, k, v, mask_mod=strict)
    parts = []
    for start, end in zip((0, *cuts), (*cuts, 7)):
        mask = mask_mod(lambda b, h, i, j, start=start: i > j + start)
        parts.append(attention(q, k[:, :, start:end], v[:, :, start:end], mask_mod=mask)[:2])
    merged, merged_lse = merge_attention(parts)
    assert_close(merged, whole)
    assert_close(merged_lse, lse)
    weights = random(*whole.shape, seed=5, grad=False)
    losses = [(o * weights).sum() + s[:, :, 1:].sum() for o, s in ((whole, lse), (merged, merged_lse))]
    for a, b in zip(*(torch.autograd.grad(x, [q, k, v]) for x in losses)):
        assert_close(a, b)


def test_parts_without_keys_contribute_nothing():
    out, lse = random(2, 3, seed=1), random(2, seed=2)
    nothing = torch.full((2, 3), math.nan, dtype=F64), torch.full((2,), -INF, dtype=F64)
    merged, merged_lse = merge_attention([nothing, (out, lse)])
    assert_close(merged, out)
    assert_close(merged_lse, lse)
    nothing[1].requires_grad_()
    merged, merged_lse = merge_attention([nothing, nothing])
    assert (merged == 0).all()
    assert (merged_lse == -INF).all()
    assert (torch.autograd.grad(merged.sum(), nothing[1])[0] == 0).all()


def test_gradcheck_of_merging():
    parts = [random(2, 3, seed=1), random(2, seed=2), random(2, 3, seed=3), random(2, seed=4)]
    hidden = torch.tensor([False, True])

    def run(out, lse, other, other_lse):
        return merge_attention([(out, lse), (other, torch.where(hidden, -INF, other_lse))])

    assert gradcheck(run, parts)
    assert gradgradcheck(run, parts)
