"""Score modifications against their formulas in plain Python, their published numbers, and their gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.attention import flex_attention as torch_flex
from torch.testing import assert_close
from torch_flexattn import masks, scores
from torch_flexattn.errors import InputError, KindError
from torch_flexattn.evaluate import evaluator
from torch_flexattn.mods import ScoreMod, compose_scores
from torch_flexattn.reference import attention

BATCH, HEADS, TOKENS = 2, 3, 12
F64 = torch.float64


def learnt(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.rand(shape, generator=generator, dtype=F64) + 0.25).requires_grad_()


def table_of(mod, q_len=TOKENS, kv_len=TOKENS, batch=BATCH, heads=HEADS):
    """The new scores of all positions, and the old ones."""
    shape = (batch, heads, q_len, kv_len)
    score = torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=F64)
    index = [
        torch.arange(n, dtype=torch.int32).view([-1 if d == own else 1 for d in range(4)])
        for own, n in enumerate(shape)
    ]
    return mod(score, *index).detach(), score


def agrees(mod, formula, tolerance=1e-12, **sizes):
    assert isinstance(mod, ScoreMod)
    new, old = table_of(mod, **sizes)
    expected = torch.empty_like(old)
    for b, h, i, j in torch.cartesian_prod(*(torch.arange(n) for n in old.shape)).tolist():
        expected[b, h, i, j] = formula(old[b, h, i, j].item(), b, h, i, j)
    assert_close(new, expected, rtol=tolerance, atol=tolerance)


SLOPES, PAIRS = learnt(HEADS), learnt(BATCH, HEADS, TOKENS, TOKENS)
RELATIVE, SWIN = learnt(HEADS, 2 * TOKENS - 1), learnt(5 * 7, HEADS)
DISTANCES, STEPS = learnt(5, HEADS), (torch.arange(BATCH * TOKENS * TOKENS) * 7 % 5).view(BATCH, TOKENS, TOKENS)
W1, B1, W2, B2, RATE, THRESHOLD = learnt(4), learnt(4, seed=1), learnt(HEADS, 4), learnt(HEADS), learnt(), learnt(1)


def fire_formula(s, b, h, i, j):
    rate, least = RATE.item(), THRESHOLD.item()
    x = math.log(1 + rate * max(i - j, 0)) / math.log(1 + rate * max(i, least))
    return s + B2[h].item() + sum(W2[h, k].item() * max(0, W1[k].item() * x + B1[k].item()) for k in range(4))


def swin_formula(s, b, h, i, j):
    down, right = i // 4 - j // 4 + 2, i % 4 - j % 4 + 3
    return s + SWIN[down * 7 + right, h].item()


@pytest.mark.parametrize(
    "mod, formula",
    [
        (scores.alibi(SLOPES), lambda s, b, h, i, j: s - SLOPES[h].item() * (i - j)),
        (scores.alibi(SLOPES, symmetric=True), lambda s, b, h, i, j: s - SLOPES[h].item() * abs(i - j)),
        (scores.alibi(HEADS), lambda s, b, h, i, j: s - [2**-4, 2**-8, 2**-2][h] * (i - j)),
        (scores.softcap(2.0), lambda s, b, h, i, j: 2 * math.tanh(s / 2)),
        (scores.softcap(2, approx=True), lambda s, b, h, i, j: 2 * math.tanh(s / 2)),
        (scores.temperature(4), lambda s, b, h, i, j: s / 4),
        (scores.temperature(SLOPES), lambda s, b, h, i, j: s / SLOPES[h].item()),
        (scores.temperature(RATE), lambda s, b, h, i, j: s / RATE.item()),
        (scores.temperature(THRESHOLD), lambda s, b, h, i, j: s / THRESHOLD.item()),
        (scores.logit_scale(SLOPES), lambda s, b, h, i, j: s * math.exp(SLOPES[h].item())),
        (scores.relative_bias(RELATIVE), lambda s, b, h, i, j: s + RELATIVE[h, i - j + TOKENS - 1].item()),
        (scores.swin_bias(SWIN, (3, 4)), swin_formula),
        (scores.pair_bias(PAIRS), lambda s, b, h, i, j: s + PAIRS[b, h, i, j].item()),
        (scores.pair_bias(PAIRS[:1]), lambda s, b, h, i, j: s + PAIRS[0, h, i, j].item()),
        (scores.pair_bias(PAIRS[:, :1]), lambda s, b, h, i, j: s + PAIRS[b, 0, i, j].item()),
        (scores.add_mask(PAIRS[0, 0]), lambda s, b, h, i, j: s + PAIRS[0, 0, i, j].item()),
        (scores.add_mask(PAIRS[0, :, :1]), lambda s, b, h, i, j: s + PAIRS[0, h, 0, j].item()),
        (scores.add_mask(PAIRS[:, :1, :1]), lambda s, b, h, i, j: s + PAIRS[b, 0, 0, j].item()),
        (scores.graphormer(DISTANCES, STEPS), lambda s, b, h, i, j: s + DISTANCES[STEPS[b, i, j], h].item()),
        (scores.graphormer(DISTANCES, STEPS[1]), lambda s, b, h, i, j: s + DISTANCES[STEPS[1, i, j], h].item()),
        (
            scores.kerple(SLOPES, SLOPES),
            lambda s, b, h, i, j: s - SLOPES[h].item() * math.log(1 + SLOPES[h].item() * abs(i - j)),
        ),
        (
            scores.kerple(SLOPES, SLOPES, "power"),
            lambda s, b, h, i, j: s - SLOPES[h].item() * abs(i - j) ** SLOPES[h].item(),
        ),
        (scores.fire(W1, B1, W2, B2, c=RATE, threshold=THRESHOLD), fire_formula),
        (scores.distance_decay(SLOPES), lambda s, b, h, i, j: s + abs(i - j) * math.log(SLOPES[h].item())),
    ],
)
def test_modification_is_its_formula(mod, formula):
    agrees(mod, formula)


def test_numbers_without_tensors_are_those_of_float32():
    decay = [1 - 2**-5, 1 - 2**-6, 1 - 2**-7]
    agrees(scores.distance_decay(3), lambda s, b, h, i, j: s + abs(i - j) * math.log(decay[h]), 1e-6)

    def sandwich(s, b, h, i, j):
        total = sum(math.cos((i - j) / 10000 ** (2 * k / 16)) for k in range(8))
        return s + total / ((h + 1) * 8 / 3)

    agrees(scores.sandwich(3, TOKENS, dim=16), sandwich, 1e-6)

    def fire(s, b, h, i, j):
        x = math.log(1 + 0.1 * max(i - j, 0)) / math.log(1 + 0.1 * max(i, 8.0))
        return s + B2[h].item() + sum(W2[h, k].item() * max(0, W1[k].item() * x + B1[k].item()) for k in range(4))

    agrees(scores.fire(W1, B1, W2, B2, threshold=8.0), fire, 1e-6)


def test_the_factor_of_logits_is_bounded():
    zero = torch.tensor(0)
    mod = scores.logit_scale(torch.tensor([3.0, 7.0], dtype=F64), most=50.0)
    scaled = mod(torch.ones(2, dtype=F64), zero, torch.arange(2), zero, zero)
    assert_close(scaled, torch.tensor([math.exp(3), 50.0], dtype=F64), rtol=1e-6, atol=0)


# Published numbers


def test_alibi_slopes():
    eight = [2.0**-n for n in range(1, 9)]
    assert scores.alibi_slopes(8).tolist() == eight
    expected = [*eight, 0.7071067812, 0.3535533906, 0.1767766953, 0.0883883476]
    assert_close(scores.alibi_slopes(12), torch.tensor(expected))
    assert scores.alibi_slopes(1).tolist() == [2.0**-8]


BOTH_WAYS = {
    -200: 15, -128: 15, -64: 14, -16: 10, -8: 8, -7: 7, -1: 1, 0: 0, 1: 17, 7: 23, 8: 24, 16: 26, 64: 30, 128: 31,
    200: 31,
}  # fmt: skip
BACK = {-200: 31, -128: 31, -64: 26, -32: 21, -16: 16, -15: 15, -1: 1, 0: 0, 1: 0, 5: 0}


@pytest.mark.parametrize("bidirectional, buckets", [(True, BOTH_WAYS), (False, BACK)])
def test_t5_buckets(bidirectional, buckets):
    mod = scores.t5_bias(torch.arange(32.0).unsqueeze(1), bidirectional=bidirectional)
    offset, zero = torch.tensor(list(buckets)), torch.tensor(0)
    found = mod(torch.zeros(len(offset)), zero, zero, torch.tensor(200), 200 + offset)
    assert dict(zip(buckets, found.int().tolist())) == buckets


@pytest.mark.parametrize("buckets, most", [(32, 128), (32, 256), (16, 64), (8, 20)])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_buckets_are_logarithmic(buckets, most, bidirectional):
    table = scores.t5_buckets(buckets, bidirectional=bidirectional, max_distance=most)
    half = buckets // 2 if bidirectional else buckets
    exact = half // 2
    distance = torch.arange(most + 1, dtype=F64)
    wide = exact + (distance / exact).log() / math.log(most / exact) * (half - exact)
    rounding = (wide - wide.round()).abs() < 1e-9  # where a logarithm cannot say which side it is on
    expected = torch.where(distance < exact, distance, torch.where(rounding, wide.round(), wide.floor()))
    assert torch.equal(table.double(), expected.clamp(max=half - 1))


def test_t5_bias_reads_its_own_head():
    table = learnt(32, HEADS)

    mod = scores.t5_bias(table)
    small = {d: abs(d) + (16 if d > 0 else 0) for d in range(-7, 8)}
    agrees(mod, lambda s, b, h, i, j: s + table[small[j - i], h].item(), q_len=8, kv_len=8)


def test_known_values_of_attention():
    q = torch.tensor([[[[1, 0], [0, 1], [1, 1], [2, -1]]]], dtype=F64)
    k = torch.tensor([[[[1, 1], [0, 2], [-1, 0], [1, -1]]]], dtype=F64)
    v = torch.tensor([[[[1, 0], [0, 1], [2, 2], [-1, 3]]]], dtype=F64)
    out, lse, _ = attention(q, k, v, score_mod=scores.alibi(torch.tensor([0.5])), mask_mod=masks.causal())
    assert_close(out[0, 0, 3], torch.tensor([-0.8409050082, 2.8135503334], dtype=F64), rtol=0, atol=6e-11)
    assert_close(lse[0, 0, 2].item(), 1.5043132374, rtol=0, atol=6e-11)
    out, lse, _ = attention(q, k, v, score_mod=scores.softcap(2), mask_mod=masks.causal())
    assert_close(out[0, 0, 3], torch.tensor([-0.3051332788, 2.0779981624], dtype=F64), rtol=0, atol=6e-11)
    bias = torch.zeros(1, 7, dtype=F64, requires_grad=True)
    out, _, _ = attention(q, k, v, score_mod=scores.relative_bias(bias), mask_mod=masks.causal())
    (out * torch.tensor([[1, 2], [3, -1], [0.5, 1], [-2, 1]])).sum().backward()
    expected = [0, 0, 0, 0.4294156753, 0.8206814343, -0.2327247770, -1.0173723325]
    assert_close(bias.grad[0], torch.tensor(expected, dtype=F64), rtol=0, atol=6e-11)


# Gradients


def qkv(tokens=4, heads=HEADS):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(BATCH, heads, tokens, 2, generator=generator, dtype=F64, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize(
    "make, shapes",
    [
        (scores.alibi, [(HEADS,)]),
        (lambda t: scores.alibi(t, symmetric=True), [(HEADS,)]),
        (scores.distance_decay, [(HEADS,)]),
        (scores.kerple, [(HEADS,), (HEADS,)]),
        (lambda a, b: scores.kerple(a, b, "power"), [(HEADS,), (HEADS,)]),
        (lambda *t: scores.fire(*t[:4], c=t[4], threshold=t[5]), [(2,), (2,), (HEADS, 2), (HEADS,), (), (1,)]),
        (scores.temperature, [(HEADS,)]),
        (scores.temperature, [()]),
        (scores.logit_scale, [(HEADS,)]),
        (scores.relative_bias, [(HEADS, 7)]),
        (lambda t: scores.t5_bias(t, max_distance=3), [(8, HEADS)]),
        (lambda t: scores.t5_bias(t, bidirectional=False, max_distance=3), [(4, HEADS)]),
        (lambda t: scores.swin_bias(t, 2), [(9, HEADS)]),
        (scores.pair_bias, [(1, HEADS, 4, 4)]),
        (scores.add_mask, [(4, 1)]),
        (lambda t: scores.graphormer(t, STEPS[:, :4, :4]), [(5, HEADS)]),
    ],
)
def test_gradients_reach_what_is_learnt(make, shapes):
    tensors = [learnt(*shape, seed=n) for n, shape in enumerate(shapes)]
    mask = masks.causal() & masks.sliding_window(3)
    inputs = [x.detach() for x in qkv()]

    def run(*tensors):
        return attention(*inputs, score_mod=make(*tensors), mask_mod=mask)[0]

    assert gradcheck(run, tensors)


def test_a_hiding_mask_hides():
    hidden = torch.zeros(4, 4, dtype=F64).masked_fill(torch.ones(4, 4).triu(1) > 0, -math.inf)
    ours = attention(*qkv(), score_mod=scores.add_mask(hidden))
    for a, b in zip(ours, attention(*qkv(), mask_mod=masks.causal())):
        assert_close(a, b)


# Together


def test_one_after_the_other():
    zero = torch.tensor(0)
    mod = scores.temperature(2).then(scores.softcap(3)).then(scores.alibi(torch.tensor([0.5])))
    same = compose_scores(scores.temperature(2), scores.softcap(3), scores.alibi(torch.tensor([0.5])))
    expected = 3 * math.tanh(5.0 / 2 / 3) - 0.5 * 4
    for each in (mod, same):
        assert each(torch.tensor(5.0), zero, zero, zero + 4, zero).item() == pytest.approx(expected)


def test_numbers_are_filled_in_at_run_time():
    assert scores.softcap(20).program.key == scores.softcap(30).program.key
    assert scores.relative_bias(torch.zeros(2, 7)).program.key == scores.relative_bias(torch.zeros(3, 9)).program.key
    narrow, wide = (
        scores.fire(torch.ones(n), torch.ones(n), torch.ones(2, n), torch.zeros(2), threshold=4.0) for n in (2, 3)
    )
    assert narrow.program.key != wide.program.key  # as many terms as units
    zero = torch.tensor(0)
    values = [mod(torch.tensor(0.0), zero, zero, zero, zero).item() for mod in (narrow, wide)]
    assert values == [2.0, 3.0]


@pytest.mark.parametrize(
    "mod",
    [
        scores.alibi(HEADS),
        scores.t5_bias(torch.arange(96.0).view(32, 3)),
        scores.swin_bias(SWIN.detach().float(), (3, 4)),
    ],
    ids=["alibi", "t5", "swin"],
)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_modification_inside_flex_attention_of_pytorch(mod):
    run = evaluator(mod.program)

    def as_function(s, b, h, i, j):
        return run({"score": s, "b": b, "h": h, "q": i, "kv": j}, mod.captures, mod.scalars)[0][0]

    q, k, v = (x.detach() for x in qkv(TOKENS))
    theirs = torch_flex.flex_attention(q, k, v, score_mod=as_function)
    assert_close(attention(q, k, v, score_mod=mod)[0], theirs)


@pytest.mark.parametrize(
    "make, error, says",
    [
        (lambda: scores.alibi(0), InputError, "slopes must .*got 0"),
        (lambda: scores.alibi(2.5), KindError, "slopes must be an integer, got 2.5"),
        (lambda: scores.alibi(torch.ones(2, 2)), InputError, r"slopes must have the shape \[H\], got \[2, 2\]"),
        (lambda: scores.alibi(torch.ones(0)), InputError, r"slopes must .*got \[0\]"),
        (lambda: scores.alibi(torch.ones(2).int()), KindError, "slopes must .*got torch.int32"),
        (lambda: scores.alibi_slopes(-3), InputError, "heads must .*got -3"),
        (lambda: scores.softcap(0), InputError, "c must be a positive number, got 0"),
        (lambda: scores.softcap(math.inf), InputError, "c must .*got inf"),
        (lambda: scores.softcap("20"), KindError, "c must be a number, got '20'"),
        (lambda: scores.temperature(-1), InputError, "t must be a positive number, got -1"),
        (lambda: scores.temperature(torch.tensor(3)), KindError, "t must .*got torch.int64"),
        (lambda: scores.temperature(torch.ones(1, 1)), InputError, r"t must .*got \[1, 1\]"),
        (lambda: scores.logit_scale(torch.ones(2, 1, 1)), InputError, r"log_scale must .*got \[2, 1, 1\]"),
        (lambda: scores.logit_scale(torch.ones(2), most=0), InputError, "most must .*got 0"),
        (lambda: scores.relative_bias(torch.ones(2, 6)), InputError, r"table must .*got \[2, 6\]"),
        (lambda: scores.relative_bias([[1.0]]), KindError, r"table must .*got \[\[1.0\]\]"),
        (lambda: scores.t5_bias(torch.ones(30, 2)), InputError, "buckets must be a multiple of 4, got 30"),
        (lambda: scores.t5_bias(torch.ones(32)), InputError, r"table must .*got \[32\]"),
        (lambda: scores.t5_bias(torch.ones(32, 2), max_distance=8), InputError, "max_distance must .*got 8"),
        (lambda: scores.t5_buckets(2), InputError, "buckets must .*got 2"),
        (lambda: scores.swin_bias(torch.ones(24, 2), (3, 4)), InputError, r"table must .*\[35, heads\].*got \[24, 2\]"),
        (lambda: scores.swin_bias(torch.ones(9, 2), 0), InputError, "window must .*got 0"),
        (lambda: scores.pair_bias(torch.ones(3, 3)), InputError, r"bias must .*got \[3, 3\]"),
        (lambda: scores.add_mask(torch.ones(3)), InputError, r"mask must .*got \[3\]"),
        (lambda: scores.add_mask(torch.ones(3, 3) > 0), KindError, "mask must .*got torch.bool"),
        (lambda: scores.add_mask(torch.ones(0, 3)), InputError, r"mask must not be empty, got \[0, 3\]"),
        (lambda: scores.graphormer(torch.ones(2, 1), torch.tensor([[2]])), InputError, "dist must .*most 1, got 2"),
        (lambda: scores.graphormer(torch.ones(2, 1), torch.tensor([[-1]])), InputError, "dist must .*got -1"),
        (lambda: scores.graphormer(torch.ones(2, 1), torch.ones(2, 2)), KindError, "dist must .*got torch.float32"),
        (lambda: scores.sandwich(0, 4), InputError, "heads must .*got 0"),
        (lambda: scores.sandwich(2, 4, dim=3), InputError, "dim must be even, got 3"),
        (lambda: scores.sandwich(2, 4, base=-1.0), InputError, "base must .*got -1.0"),
        (lambda: scores.kerple(torch.ones(2), torch.ones(3)), InputError, r"r1 and r2 .*got \[2\] and \[3\]"),
        (lambda: scores.kerple(torch.ones(2), torch.ones(2), "exp"), InputError, "kind must .*got 'exp'"),
        (
            lambda: scores.fire(torch.ones(2), torch.ones(3), torch.ones(1, 2), torch.ones(1)),
            InputError,
            r"w1, b1, w2, b2 .*got \[2\], \[3\], \[1, 2\], \[1\]",
        ),
        (
            lambda: scores.fire(torch.ones(2), torch.ones(2), torch.ones(1, 2), torch.ones(1), c="a"),
            KindError,
            "c must be a number, got 'a'",
        ),
        (lambda: scores.distance_decay(0), InputError, "decay must .*got 0"),
        (lambda: scores.distance_decay(torch.ones(1, 1)), InputError, r"decay must .*got \[1, 1\]"),
    ],
)
def test_bad_arguments_are_named(make, error, says):
    with pytest.raises(error, match=says):
        make()
