"""The CPU backward kernel against autograd through the dense reference, numerical derivatives, and known gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch_flexattn import reference
from torch_flexattn.build import create_block_mask
from torch_flexattn.kernels.cpu import backward, forward
from torch_flexattn.kernels.dropout import keep
from torch_flexattn.mods import mask_mod, score_mod

MASKS = [
    "none", "causal", "window", "documents", "prefix", "head", "batch", "batch and head", "empty rows", "strict",
    "nothing", "scattered", "streaming",
]  # fmt: skip
SCORES = [
    "alibi", "softcap", "exp", "relative", "relative of one head", "buckets", "head", "scalar", "key", "query",
    "pairs", "coarse pairs", "square", "twice", "hashed", "independent", "minus infinity", "log",
]  # fmt: skip
LEARNT = [
    "relative",
    "relative of one head",
    "buckets",
    "head",
    "scalar",
    "key",
    "query",
    "pairs",
    "coarse pairs",
    "square",
    "twice",
    "hashed",
    "independent",
]


def inputs(
    q_len, kv_len, *, batch=2, heads=4, kv_heads=2, kv_batch=None, width=8, v_width=8, dtype=torch.float64, seed=0
):
    """Q, k, v, and gradients of the output and of lse."""
    generator = torch.Generator().manual_seed(seed)

    def of(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    kv_batch = batch if kv_batch is None else kv_batch
    q = of(batch, heads, q_len, width)
    kv = of(kv_batch, kv_heads, kv_len, width), of(kv_batch, kv_heads, kv_len, v_width)
    wide = dtype if dtype == torch.float64 else torch.float32
    return q, *kv, of(batch, heads, q_len, v_width), of(batch, heads, q_len).to(wide)


class Attention(torch.autograd.Function):
    """The kernels as an operation that autograd knows; the last argument are the captured tensors of ``score``."""

    @staticmethod
    def forward(ctx, q, k, v, sinks, options, *captures):
        out, lse, _ = forward(q, k, v, sinks=sinks, **options)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, sinks, out, lse)
        ctx.options, ctx.needed = options, [c.requires_grad for c in captures]
        return out, lse

    @staticmethod
    def backward(ctx, grad_out, grad_lse):
        q, k, v, sinks, out, lse = ctx.saved_tensors
        *grads, captures, of_sinks = backward(
            torch.zeros_like(out) if grad_out is None else grad_out,
            grad_lse,
            q,
            k,
            v,
            out,
            lse,
            sinks=sinks,
            needed=ctx.needed,
            **ctx.options,
        )
        return *grads, of_sinks, None, *captures


def attend(q, k, v, sinks=None, *, score=None, **options):
    options = {"mask": None, "scale": q.shape[-1] ** -0.5, "score": score, **options}
    return Attention.apply(q, k, v, sinks, options, *(() if score is None else score.captures))


@pytest.fixture(autouse=True)
def one_thread():
    """The tiles of tests are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def blocks_of(brute_block_mask):
    def make(mask, q, k, block=(32, 32)):
        if mask is None:
            return None
        needs = mask.dependencies
        shape = (q.shape[0] if "b" in needs else 1, q.shape[1] if "h" in needs else 1, q.shape[2], k.shape[2])
        return brute_block_mask(mask, shape, block)

    return make


def gradients(results, tensors, grads, *, retain=False):
    """Of all ``tensors``, 0 where none reaches one."""
    results, grads = zip(*[(r, g) for r, g in zip(results, grads) if r.requires_grad])
    found = torch.autograd.grad(results, tensors, grads, allow_unused=True, retain_graph=retain)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, found)]


@pytest.fixture
def compare(blocks_of):
    """Gradients of kernel and reference for the same inputs, of q, k, v, sinks and captured tensors.

    First with the gradient of ``out`` alone, which PyTorch's fused attention may serve, then with that of ``lse``.
    """

    def run(q, k, v, grad_out, grad_lse, *, mask=None, score=None, sinks=None, block=(32, 32), **options):
        tensors = [x.requires_grad_() for x in (q, k, v, *(() if sinks is None else (sinks,)))]
        tensors += [c for c in (() if score is None else score.captures) if c.requires_grad]
        got = attend(q, k, v, sinks, mask=blocks_of(mask, q, k, block), score=score, **options)
        options = {name: x for name, x in options.items() if name in ("q_offset", "kv_lens")}
        out, lse, _ = reference.attention(q, k, v, mask_mod=mask, score_mod=score, sinks=sinks, **options)
        lse = torch.where(lse == -math.inf, 0, lse)
        alone = [gradients((o,), tensors, (g,), retain=True) for o, g in ((got[0], grad_out), (out, grad_out.double()))]
        agree(*alone, 1e-9 if q.dtype == torch.float64 else 0.1)
        mine = gradients(got, tensors, (grad_out, grad_lse))
        theirs = gradients((out, lse), tensors, (grad_out.double(), grad_lse.double()))
        return mine, theirs

    return run


def agree(mine, theirs, tolerance=1e-9):
    for a, b in zip(mine, theirs, strict=True):
        assert_close(a, b, atol=tolerance, rtol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("block", [(16, 16), (128, 128)])
def test_every_mask(compare, mask_named, name, block):
    agree(*compare(*inputs(150, 150), mask=mask_named(name), block=block))


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("mask", ["none", "streaming"])
def test_every_score_modification(compare, mask_named, score_named, name, mask):
    agree(*compare(*inputs(150, 150), mask=mask_named(mask), score=score_named(name)))


@pytest.mark.parametrize("tile", [200, 3000, 1 << 14])
def test_steps_of_any_width_give_the_same(compare, mask_named, score_named, monkeypatch, tile):
    monkeypatch.setattr("torch_flexattn.kernels.cpu.tile.TILE", tile)
    for mask, score in (
        ("streaming", "relative"),
        ("scattered", "twice"),
        ("none", "none"),
        ("batch and head", "pairs"),
    ):
        agree(*compare(*inputs(150, 150), mask=mask_named(mask), score=score_named(score)))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 1), (6, 2), (6, 1), (12, 2)])
@pytest.mark.parametrize("kv_batch", [1, 2])
def test_heads_that_share_keys(compare, mask_named, heads, kv_heads, kv_batch):
    tensors = inputs(65, 47, heads=heads, kv_heads=kv_heads, kv_batch=kv_batch)
    slope, strength = torch.linspace(0.1, 1, heads), torch.ones(2, 47, dtype=torch.float64, requires_grad=True)
    mod = score_mod(lambda s, b, h, q, kv: s - slope[h] * (q - kv).abs() + 0.1 * b * strength[b, kv])
    limit = torch.arange(heads) * 5 + 3
    for mask in (
        mask_named("causal"),
        mask_named("batch"),
        mask_mod(lambda b, h, q, kv: (q - kv).abs() < limit[h] + b),
    ):
        agree(*compare(*tensors, mask=mask, score=mod))


@pytest.mark.parametrize(
    ("q_len", "kv_len", "width", "v_width"), [(1, 150, 8, 5), (150, 1, 8, 16), (1, 1, 1, 1), (33, 129, 1, 8)]
)
def test_odd_sizes(compare, mask_named, score_named, q_len, kv_len, width, v_width):
    tensors = inputs(q_len, kv_len, width=width, v_width=v_width)
    for mask, score in (("none", "none"), ("causal", "alibi"), ("documents", "relative"), ("none", "pairs")):
        agree(*compare(*tensors, mask=mask_named(mask), score=score_named(score)))


@pytest.mark.parametrize(("batch", "q_len", "kv_len"), [(2, 0, 5), (2, 5, 0), (0, 5, 5), (2, 0, 0)])
def test_nothing_to_do(batch, q_len, kv_len, score_named):
    q, k, v, grad_out, grad_lse = inputs(q_len, kv_len, batch=batch)
    options = {"mask": None, "score": score_named("head"), "scale": 1.0, "sinks": torch.zeros(4, dtype=torch.float64)}
    out, lse, _ = forward(q, k, v, **options)
    of_q, of_k, of_v, (of_capture,), of_sinks = backward(grad_out, grad_lse * 0, q, k, v, out, lse, **options)
    for grad, x in zip((of_q, of_k, of_v, of_capture, of_sinks), (q, k, v, torch.zeros(4), torch.zeros(4))):
        assert grad.shape == x.shape
        assert not grad.any()


def test_strided_inputs_and_gradients(compare, mask_named):
    tensors = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs(70, 70)]
    mine, theirs = compare(*tensors, mask=mask_named("window"))
    agree(mine, theirs)
    assert mine[0].transpose(1, 2).is_contiguous()


def test_a_gradient_that_is_expanded(compare, mask_named):
    q, k, v, _, _ = inputs(70, 70)
    one = torch.ones((), dtype=torch.float64)
    agree(*compare(q, k, v, one.expand(2, 4, 70, 8), one.expand(2, 4, 70), mask=mask_named("window")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_low_precision_is_as_good_as_its_inputs(compare, mask_named, score_named, dtype):
    mine, theirs = compare(
        *inputs(200, 200, dtype=dtype, width=16),
        mask=mask_named("window"),
        score=score_named("relative", torch.float32),
    )
    assert [g.dtype for g in mine] == [dtype] * 3 + [torch.float32]
    for a, b in zip(mine[:3], theirs[:3]):
        # The output that forward saved is rounded to ``dtype``, and so is each gradient.
        allowed = 2e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
        assert (a.double() - b.double()).abs().max() <= allowed * b.double().abs().max()


@pytest.mark.parametrize("offset", [7, torch.tensor([3, 11], dtype=torch.int32)])
@pytest.mark.parametrize("lens", [torch.tensor([40, 9], dtype=torch.int32), torch.tensor([0, 50], dtype=torch.int32)])
def test_offsets_of_queries_and_lengths_of_keys(compare, score_named, offset, lens):
    q, k, v, grad_out, grad_lse = inputs(20, 50)
    mine, theirs = compare(q, k, v, grad_out, grad_lse, score=score_named("relative"), q_offset=offset, kv_lens=lens)
    agree(mine, theirs)
    assert not mine[1][0, :, lens[0] :].any()


@pytest.mark.parametrize("mask", ["none", "window", "strict"])
def test_sinks(compare, mask_named, mask):
    sinks = torch.tensor([0.3, -1.0, 4.0, 0.0], dtype=torch.float64)
    agree(*compare(*inputs(60, 60), mask=mask_named(mask), sinks=sinks))


def test_a_sink_of_minus_infinity_is_none(compare, mask_named):
    sinks = torch.full((4,), -math.inf, dtype=torch.float64)
    tensors = inputs(60, 60)
    agree(
        compare(*tensors, mask=mask_named("strict"), sinks=sinks)[0][:3],
        compare(*tensors, mask=mask_named("strict"))[0],
    )


def test_dropout_drops_the_same_weights_again(blocks_of, mask_named):
    q, k, v, grad_out, grad_lse = inputs(70, 83)
    mask = mask_named("streaming")
    b, h, i = (torch.arange(n).view(-1, *[1] * (3 - d)) for d, n in enumerate((2, 4, 70)))
    factor = keep(99, b, h, i, 0, 83, 0.25).double() / 0.75
    tensors = [x.requires_grad_() for x in (q, k, v)]
    expected = reference.attention(q, k, v, mask_mod=mask, dropout_mask=factor)[:2]
    got = attend(q, k, v, mask=blocks_of(mask, q, k), dropout_p=0.25, seed=99)
    agree(gradients(got, tensors, (grad_out, grad_lse)), gradients(expected, tensors, (grad_out, grad_lse)))


@pytest.mark.parametrize("name", ["strict", "empty rows"])
def test_bad_gradients_of_rows_that_see_nothing_do_not_matter(compare, blocks_of, mask_named, score_named, name):
    q, k, v, grad_out, grad_lse = inputs(60, 60)
    mask = mask_named(name)
    i = torch.arange(60)
    empty = ~mask(torch.tensor(0), torch.tensor(0), i[:, None], i[None, :]).any(-1)
    assert empty.any()
    no_sinks = torch.full((4,), -math.inf, dtype=torch.float64)
    for score, sinks in ((None, None), (score_named("head"), None), (None, no_sinks)):
        _, theirs = compare(q, k, v, grad_out, grad_lse, mask=mask, score=score)
        tensors = [q, k, v, *(() if score is None else score.captures), *(() if sinks is None else (sinks,))]
        bad = [
            g.masked_fill(empty.view(60, *[1] * (g.dim() - 3)), x)
            for g, x in ((grad_out, math.nan), (grad_lse, math.inf))
        ]
        results = attend(
            q, k, v, None if sinks is None else sinks.requires_grad_(), score=score, mask=blocks_of(mask, q, k)
        )
        mine = gradients(results, tensors, bad)
        agree(mine, theirs if sinks is None else [*theirs, torch.zeros(4, dtype=torch.float64)])
        assert not mine[0][:, :, empty].any()


def test_infinite_derivatives_at_invisible_keys_do_not_matter(compare, mask_named):
    strength = torch.ones(4, dtype=torch.float64, requires_grad=True)
    mod = score_mod(lambda s, b, h, q, kv: s * torch.log(torch.relu((q - kv).float())) * strength[h])
    mine, theirs = compare(*inputs(60, 60), mask=mask_named("strict"), score=mod)
    agree(mine, theirs)
    assert all(g.isfinite().all() for g in mine)


@pytest.mark.parametrize("score", ["none", "head", "key"])
def test_a_bad_query_spoils_the_gradients_of_what_it_sees_alone(blocks_of, mask_named, score_named, score):
    q, k, v, grad_out, grad_lse = inputs(60, 60)
    mask, score = mask_named("window"), score_named(score)
    tensors = [x.requires_grad_() for x in (q, k, v)]

    def run():
        results = attend(q, k, v, score=score, mask=blocks_of(mask, q, k))
        return gradients(results, [*tensors, *(() if score is None else score.captures)], (grad_out, grad_lse))

    sane = run()
    with torch.no_grad():
        q[0, 1, 30] = math.nan
    spoilt = run()
    seen = mask(torch.tensor(0), torch.tensor(0), torch.tensor(30), torch.arange(60))
    for n, (before, after) in enumerate(zip(sane, spoilt)):
        bad = torch.zeros(before.shape, dtype=torch.bool)
        if n == 0:
            bad[0, 1, 30] = True
        elif n < 3:
            bad[0, 0, seen] = True
        elif before.shape == (4,):
            bad[1] = True
        else:
            bad[:60][seen] = True
        assert torch.equal(after.isnan(), bad)
        assert_close(after[~bad], before[~bad])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_numbers_at_invisible_keys_do_not_matter(compare, mask_named, score_named, bad):
    """Keys 40 and up are invisible, though in partial blocks, and so is key 20 for most queries."""
    mask = mask_mod(lambda b, h, q, kv: (kv < 40) & ((kv != 20) | (q == 33)))
    q, k, v, grad_out, grad_lse = inputs(60, 60)
    k[:, :, 40:], v[:, :, 40:] = bad, bad
    mine, theirs = compare(q, k, v, grad_out, grad_lse, mask=mask, score=score_named("key"))
    agree(mine, theirs)
    assert all(g.isfinite().all() for g in mine)
    with torch.no_grad():
        v[:, :, 20, 0] = bad
    (of_q, of_k, of_v, _), _ = compare(q, k, v, grad_out, grad_lse, mask=mask, score=score_named("key"))
    bad_rows = torch.arange(60) == 33
    assert of_q[:, :, ~bad_rows].isfinite().all()
    assert of_q[:, :, bad_rows].isnan().any()
    assert of_k[:, :, 40:].isfinite().all()
    assert of_v[:, :, 40:].isfinite().all()


@pytest.mark.parametrize("name", ["none", *LEARNT, "cube"])
def test_derivatives_of_every_kind_of_captured_tensor(blocks_of, mask_named, score_named, name):
    """Every dependence of an index: constant, on heads, on queries or keys, on both, on their distance, on a hash."""
    q, k, v, _, _ = inputs(7, 9, heads=4, width=3, v_width=2)
    score, blocks = score_named(name, size=9), blocks_of(mask_named("streaming"), q, k, (16, 16))
    learnt = () if score is None else score.captures
    sinks = torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=torch.float64, requires_grad=True)

    def run(q, k, v, sinks, *_):
        out, lse = attend(q, k, v, sinks, score=score, mask=blocks)
        return out, lse

    tensors = (*(x.requires_grad_() for x in (q, k, v)), sinks, *learnt)
    assert torch.autograd.gradcheck(run, tensors, fast_mode=name not in ("none", "relative"))


def test_captured_tensors_without_gradient_get_none(score_named):
    q, k, v, grad_out, grad_lse = inputs(20, 20)
    frozen, learnt = torch.ones(4, dtype=torch.float64), torch.ones(20, dtype=torch.float64, requires_grad=True)
    mod = score_mod(lambda s, b, h, q, kv: s * frozen[h] + learnt[kv])
    out, lse, _ = forward(q, k, v, mask=None, score=mod, scale=1.0)
    (_, _, _, of_captures, of_sinks) = backward(grad_out, grad_lse, q, k, v, out, lse, mask=None, score=mod, scale=1.0)
    assert [g is not None for g in of_captures] == [c.requires_grad for c in mod.captures]
    assert of_sinks is None


def test_what_is_read_out_of_range_gets_no_gradient():
    """Without a check it counts as 0, as if the modification had left the score alone there."""
    q, k, v, grad_out, grad_lse = inputs(30, 30)
    table = torch.randn(25, dtype=torch.float64, requires_grad=True)
    reads = score_mod(lambda s, b, h, q, kv: s + table[kv])
    same = score_mod(lambda s, b, h, q, kv: torch.where(kv < 25, s + table[torch.clamp(kv, max=24)], s))
    grads = []
    for mod in (reads, same):
        options = {"mask": None, "score": mod, "scale": 1.0, "check": False}
        out, lse, _ = forward(q, k, v, **options)
        *of_inputs, of_captures, _ = backward(grad_out, grad_lse, q, k, v, out, lse, **options)
        grads.append([*of_inputs, *of_captures])
    agree(*grads)


def test_gradients_of_a_low_precision_table_are_added_in_float32():
    """One place collects 8 · 64 · 64 small numbers: in bfloat16 the sum would stop growing."""
    q, k, v, grad_out, _ = inputs(64, 64, heads=4, kv_heads=4, dtype=torch.float32)
    table = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    mod = score_mod(lambda s, b, h, q, kv: s + table[0] * (kv % 2 == 0))
    out, lse, _ = forward(q, k, v, mask=None, score=mod, scale=1.0)
    grad_lse = torch.ones_like(lse)
    grad = backward(grad_out * 0, grad_lse, q, k, v, out, lse, mask=None, score=mod, scale=1.0)[3][0]
    i = torch.arange(64)
    scores = (q @ k.mT + (i % 2 == 0)).softmax(-1)
    assert grad.dtype == torch.bfloat16
    assert_close(grad[0].float(), scores[..., ::2].sum(), rtol=0.01, atol=0)


def test_two_runs_give_equal_bits(blocks_of, mask_named, score_named):
    q, k, v, grad_out, grad_lse = inputs(200, 200, dtype=torch.float32)
    for name in LEARNT:
        score, mask = score_named(name, torch.float32), blocks_of(mask_named("streaming"), q, k)
        out, lse, _ = forward(q, k, v, mask=mask, score=score, scale=1.0)
        first, second = (
            backward(grad_out, grad_lse, q, k, v, out, lse, mask=mask, score=score, scale=1.0) for _ in range(2)
        )
        for a, b in zip((*first[:3], *first[3]), (*second[:3], *second[3])):
            assert a is b is None or torch.equal(a, b)


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.untyped_storage().nbytes() // x.element_size())
        return result


@pytest.mark.parametrize("score", ["none", "softcap"])
def test_nothing_of_the_size_of_all_scores_is_made(score_named, score):
    length = 4096
    q, k, v, grad_out, grad_lse = inputs(length, length, batch=1, heads=2, kv_heads=1, dtype=torch.float32)
    window = mask_mod(lambda b, h, q, kv: (q >= kv) & (q - kv < 100))
    mask = create_block_mask(window, None, None, length, length)
    options = {"mask": mask, "score": score_named(score), "scale": 1.0}
    for want_max in (True, False):
        with Largest() as largest:
            out, lse, _ = forward(q, k, v, want_max=want_max, **options)
            backward(grad_out, grad_lse if want_max else None, q, k, v, out, lse, **options)
        assert largest.numel <= 4 * length * (8 + 128)


# From section 7 of the package's specification.
Q = [[1, 0], [0, 1], [1, 1], [2, -1]]
K = [[1, 1], [0, 2], [-1, 0], [1, -1]]
V = [[1, 0], [0, 1], [2, 2], [-1, 3]]
WEIGHTS = [[1, 2], [3, -1], [0.5, 1], [-2, 1]]


@pytest.fixture
def known():
    return [torch.tensor(x, dtype=torch.float64).view(1, 1, 4, 2).requires_grad_() for x in (Q, K, V)]


def near(got, expected):
    assert_close(got, torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=0)


def test_known_gradients_of_causal(blocks_of, mask_named, known):
    q, k, v = known
    attend(q, k, v, mask=blocks_of(mask_named("causal"), q, k))[0].sum().backward()
    near(q.grad[0, 0, 2:], [[-0.1697579033] * 2, [-0.0553146664, -0.2261740455]])
    near(v.grad[0, 0], [[x, x] for x in (1.9887760102, 1.1638815368, 0.0789410376, 0.7684014155)])


def test_known_gradients_of_strictly_causal(blocks_of, mask_named, known):
    q, k, v = known
    attend(q, k, v, mask=blocks_of(mask_named("strict"), q, k))[0].sum().backward()
    assert not q.grad[0, 0, 0].any()
    assert not v.grad[0, 0, 3].any()


def test_known_gradients_of_captured_tensors(blocks_of, mask_named, known):
    q, k, v = known
    bias, t = (
        torch.zeros(7, dtype=torch.float64, requires_grad=True),
        torch.ones((), dtype=torch.float64, requires_grad=True),
    )
    mods = (score_mod(lambda s, b, h, i, j: s + bias[i - j + 3]), score_mod(lambda s, b, h, i, j: s * t))
    for mod in mods:
        out, _ = attend(q, k, v, mask=blocks_of(mask_named("causal"), q, k), score=mod)
        (out * torch.tensor(WEIGHTS, dtype=torch.float64)).sum().backward()
    near(bias.grad, [0, 0, 0, 0.4294156753, 0.8206814343, -0.2327247770, -1.0173723325])
    near(t.grad, 1.1833869851)
