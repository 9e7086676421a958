"""The CPU forward kernel against the dense reference, and against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close
from torch_flexattn import reference
from torch_flexattn.build import create_block_mask
from torch_flexattn.kernels.cpu import forward
from torch_flexattn.kernels.dropout import keep, philox
from torch_flexattn.mods import mask_mod, score_mod

MASKS = [
    "none", "causal", "window", "documents", "prefix", "head", "batch", "batch and head", "empty rows", "strict",
    "nothing", "scattered", "streaming",
]  # fmt: skip
SCORES = [
    "none", "alibi", "softcap", "exp", "relative", "relative of one head", "buckets", "head", "scalar", "key", "query",
    "pairs", "coarse pairs", "square", "twice", "hashed", "independent", "minus infinity", "log",
]  # fmt: skip


def inputs(
    q_len, kv_len, *, batch=2, heads=4, kv_heads=2, kv_batch=None, width=8, v_width=8, dtype=torch.float64, seed=0
):
    generator = torch.Generator().manual_seed(seed)

    def of(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    kv_batch = batch if kv_batch is None else kv_batch
    return (
        of(batch, heads, q_len, width),
        of(kv_batch, kv_heads, kv_len, width),
        of(kv_batch, kv_heads, kv_len, v_width),
    )


@pytest.fixture(autouse=True)
def one_thread():
    """The tiles of tests are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def attend(brute_block_mask):
    """Runs the kernel and the reference on the same inputs; gives both results."""

    def run(q, k, v, mask=None, score=None, block=(32, 32), **options):
        blocks = None
        if mask is not None:
            needs = mask.dependencies
            shape = (q.shape[0] if "b" in needs else 1, q.shape[1] if "h" in needs else 1, q.shape[2], k.shape[2])
            blocks = brute_block_mask(mask, shape, block)
        options |= {"mask": blocks, "score": score, "scale": q.shape[-1] ** -0.5}
        got = forward(q, k, v, **options)
        out, lse, nothing = forward(q, k, v, want_max=False, **options)  # PyTorch's fused attention may serve
        assert nothing is None
        close = {"atol": 1e-3, "rtol": 1e-2} if q.dtype in (torch.float16, torch.bfloat16) else {}
        assert_close(out, got[0], equal_nan=True, **close)
        assert_close(lse, got[1], equal_nan=True, **close)
        options = {name: x for name, x in options.items() if name in ("q_offset", "kv_lens", "sinks")}
        with torch.no_grad():
            return got, reference.attention(q, k, v, mask_mod=mask, score_mod=score, **options)

    return run


def agree(got, expected):
    for mine, theirs in zip(got, expected):
        assert_close(mine.double(), theirs, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("block", [(16, 16), (32, 48), (128, 128)])
def test_every_mask_sees_what_it_says(attend, mask_named, name, block):
    agree(*attend(*inputs(150, 150), mask_named(name), block=block))


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("mask", ["none", "streaming"])
def test_every_score_modification(attend, mask_named, score_named, name, mask):
    agree(*attend(*inputs(150, 150), mask_named(mask), score_named(name)))


@pytest.mark.parametrize("tile", [200, 3000, 1 << 14])
def test_steps_of_any_width_give_the_same(attend, mask_named, score_named, monkeypatch, tile):
    monkeypatch.setattr("torch_flexattn.kernels.cpu.tile.TILE", tile)
    for mask, score in (
        ("streaming", "relative"),
        ("scattered", "twice"),
        ("none", "none"),
        ("batch and head", "pairs"),
    ):
        agree(*attend(*inputs(150, 150), mask_named(mask), score_named(score)))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 1), (6, 2), (6, 1), (12, 2)])
@pytest.mark.parametrize("kv_batch", [1, 2])
def test_heads_that_share_keys(attend, mask_named, heads, kv_heads, kv_batch):
    tensors = inputs(65, 47, heads=heads, kv_heads=kv_heads, kv_batch=kv_batch)
    slope = torch.linspace(0.1, 1, heads)
    mod = score_mod(lambda s, b, h, q, kv: s - slope[h] * (q - kv).abs() + 0.1 * b * kv)
    limit = torch.arange(heads) * 5 + 3
    for mask in (
        mask_named("causal"),
        mask_named("batch"),
        mask_mod(lambda b, h, q, kv: (q - kv).abs() < limit[h] + b),
    ):
        agree(*attend(*tensors, mask, mod))


@pytest.mark.parametrize(
    ("q_len", "kv_len", "width", "v_width"), [(1, 150, 8, 5), (150, 1, 8, 16), (1, 1, 1, 1), (33, 129, 1, 8)]
)
def test_odd_sizes(attend, mask_named, score_named, q_len, kv_len, width, v_width):
    tensors = inputs(q_len, kv_len, width=width, v_width=v_width)
    for mask, score in (("none", "none"), ("causal", "alibi"), ("documents", "relative"), ("none", "pairs")):
        agree(*attend(*tensors, mask_named(mask), score_named(score)))


@pytest.mark.parametrize(("batch", "q_len", "kv_len"), [(2, 0, 5), (2, 5, 0), (0, 5, 5), (2, 0, 0)])
def test_nothing_to_do(batch, q_len, kv_len):
    q, k, v = inputs(q_len, kv_len, batch=batch)
    out, lse, largest = forward(q, k, v, mask=None, score=None, scale=1.0)
    assert out.shape == (batch, 4, q_len, 8)
    assert not out.any()
    assert lse.shape == largest.shape == (batch, 4, q_len)
    assert (lse == -math.inf).all()
    assert (largest == -math.inf).all()


@pytest.mark.parametrize("lens", [[0, 0], [0, 3]])
def test_values_without_features_where_some_see_no_key(lens):
    q, k, v = torch.randn(2, 2, 5, 4), torch.randn(2, 1, 4, 4), torch.randn(2, 1, 4, 0)
    lens = torch.tensor(lens)
    out, lse, largest = forward(q, k, v, mask=None, score=None, scale=0.5, kv_lens=lens, want_max=True)
    right = reference.attention(q, k, v, scale=0.5, kv_lens=lens)
    assert out.shape == (2, 2, 5, 0)
    assert_close(lse, right[1].float())
    assert_close(largest, right[2].float())


def test_strides_of_batch_first_projections_are_kept(attend, mask_named):
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs(70, 70))
    got, expected = attend(q, k, v, mask_named("window"))
    agree(got, expected)
    assert got[0].transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_low_precision_is_as_good_as_dense_mathematics(attend, mask_named, score_named, dtype):
    tensors = inputs(200, 200, dtype=dtype, width=16)
    mask, score = mask_named("window"), score_named("relative", torch.float32)
    got, expected = attend(*tensors, mask, score)
    assert got[0].dtype == dtype
    assert got[1].dtype == got[2].dtype == torch.float32
    dense = expected[0].to(dtype).double()
    allowed = 2 * (dense - expected[0]).abs().max() + 1e-5
    assert (got[0].double() - expected[0]).abs().max() <= allowed
    assert_close(got[1].double(), expected[1], atol=2e-6, rtol=2e-6)
    assert_close(got[2].double(), expected[2], atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("offset", [7, torch.tensor([3, 11], dtype=torch.int32)])
@pytest.mark.parametrize(
    "lens", [None, torch.tensor([40, 9], dtype=torch.int32), torch.tensor([0, 50], dtype=torch.int32)]
)
@pytest.mark.parametrize("q_len", [1, 20])
def test_offsets_of_queries_and_lengths_of_keys(attend, mask_named, score_named, brute_block_mask, offset, lens, q_len):
    q, k, v = inputs(q_len, 50)
    causal, relative = mask_named("causal"), score_named("relative")
    everywhere = torch.ones(1, 1, -(-q_len // 16), 4, dtype=torch.long)  # partial: the mask decides, after the offset
    blocks = brute_block_mask(causal, (1, 1, q_len, 50), (16, 16), everywhere)
    got = forward(q, k, v, mask=blocks, score=relative, scale=0.3, q_offset=offset, kv_lens=lens)
    with torch.no_grad():
        expected = reference.attention(
            q, k, v, mask_mod=causal, score_mod=relative, scale=0.3, q_offset=offset, kv_lens=lens
        )
    agree(got, expected)


def test_keys_behind_the_length_are_never_read():
    q, k, v = inputs(20, 50)
    lens = torch.tensor([30, 11])
    expected = forward(q, k, v, mask=None, score=None, scale=1.0, kv_lens=lens)
    for b, length in enumerate(lens):
        k[b, :, length:], v[b, :, length:] = math.nan, math.inf
    got = forward(q, k, v, mask=None, score=None, scale=1.0, kv_lens=lens)
    for mine, theirs in zip(got, expected):
        assert torch.equal(mine, theirs)


def test_blocks_decide_where_the_function_does_not(brute_block_mask):
    """Blocks given by hand: none is invisible and full visible whatever the mask says, also where rows are joined."""
    generator = torch.Generator().manual_seed(1)
    kinds = torch.randint(0, 3, (1, 1, 10, 7), generator=generator)
    q, k, v = inputs(155, 105)
    causal = mask_mod(lambda b, h, q, kv: q >= kv)
    of_block = kinds[0, 0].repeat_interleave(16, 0).repeat_interleave(16, 1)[:155, :105]
    seen = (of_block == 2) | ((of_block == 1) & (torch.arange(155)[:, None] >= torch.arange(105)))
    expected = reference.attention(q, k, v, mask_mod=mask_mod(lambda b, h, q, kv: seen[q, kv]))
    blocks = brute_block_mask(causal, (1, 1, 155, 105), (16, 16), kinds)
    agree(forward(q, k, v, mask=blocks, score=None, scale=8**-0.5), expected)


def test_blocks_may_be_the_same_for_heads_that_see_different_keys(brute_block_mask):
    q, k, v = inputs(60, 60)
    limit = torch.tensor([[1, 4, 9, 60], [20, 2, 30, 5]])
    mask = mask_mod(lambda b, h, q, kv: (q - kv).abs() < limit[b, h])
    blocks = brute_block_mask(mask, (1, 1, 60, 60), (16, 16), torch.ones(1, 1, 4, 4, dtype=torch.long))
    for want_max in (True, False):
        got = forward(q, k, v, mask=blocks, score=None, scale=8**-0.5, want_max=want_max)
        agree(got[:2], reference.attention(q, k, v, mask_mod=mask))


def test_blocks_without_a_function_are_full(brute_block_mask):
    kinds = torch.randint(0, 2, (1, 1, 10, 7), generator=torch.Generator().manual_seed(1)) * 2
    q, k, v = inputs(155, 105)
    seen = kinds[0, 0].repeat_interleave(16, 0).repeat_interleave(16, 1)[:155, :105] == 2
    expected = reference.attention(q, k, v, mask_mod=mask_mod(lambda b, h, q, kv: seen[q, kv]))
    blocks = brute_block_mask(None, (1, 1, 155, 105), (16, 16), kinds)
    agree(forward(q, k, v, mask=blocks, score=None, scale=8**-0.5), expected)


@pytest.mark.parametrize("name", MASKS[1:])
def test_block_masks_as_they_are_built(mask_named, score_named, name):
    q, k, v = inputs(190, 170)
    mask, score = mask_named(name), score_named("buckets")
    blocks = create_block_mask(mask, 2, 4, 190, 170, BLOCK_SIZE=(32, 64))
    got = forward(q, k, v, mask=blocks, score=score, scale=8**-0.5)
    with torch.no_grad():
        agree(got, reference.attention(q, k, v, mask_mod=mask, score_mod=score))


@pytest.mark.parametrize("mask", ["none", "window", "strict"])
def test_sinks_take_their_share(attend, mask_named, mask):
    sinks = torch.tensor([0.3, -1.0, 4.0, -math.inf], dtype=torch.float64)
    (out, lse, largest), expected = attend(*inputs(60, 60), mask_named(mask), sinks=sinks)
    agree((out, lse, largest), expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_bad_numbers_stay_with_the_rows_that_see_them(attend, mask_named, score_named, bad):
    q, k, v = inputs(60, 60)
    k[0, 0, 7, 2], v[0, 1, 30, 1], q[1, 2, 11, 0] = bad, bad, bad
    got, expected = attend(q, k, v, mask_named("window"), score_named("softcap"))
    sane = expected[0].isfinite()
    assert torch.equal(got[0].isfinite(), sane)
    assert not sane.all()
    assert_close(got[0][sane], expected[0][sane])
    assert_close(got[0][0, 1][~sane[0, 1]], expected[0][0, 1][~sane[0, 1]], equal_nan=True)


@pytest.mark.parametrize("bad", ["q", "k"])
def test_bad_numbers_with_few_keys(bad):
    q, k, v = inputs(3, 4, dtype=torch.float32)
    {"q": q, "k": k}[bad][0, 0, 1, 2] = math.nan
    out, _, _ = forward(q, k, v, mask=None, score=None, scale=1.0)
    assert out[0, 0, 1].isnan().all()
    assert out[1].isfinite().all()


def test_plus_infinity_of_a_modification_stays_in_its_row():
    q, k, v = inputs(20, 20)
    mod = score_mod(lambda s, b, h, q, kv: torch.where((q == 3) & (kv == 4), float("inf"), s))
    out, _, _ = forward(q, k, v, mask=None, score=mod, scale=1.0)
    assert out[:, :, 3].isnan().all()
    assert torch.cat([out[:, :, :3], out[:, :, 4:]], 2).isfinite().all()


def test_captured_tensors_are_not_written_to():
    q, k, v = inputs(40, 40)
    scores = torch.randn(2, 4, 40, 40, dtype=torch.float64)
    before = scores.clone()
    mod = score_mod(lambda s, b, h, q, kv: scores[b, h, q, kv])
    out, _, _ = forward(q, k, v, mask=None, score=mod, scale=1.0)
    assert torch.equal(scores, before)
    assert_close(out, scores.softmax(-1) @ v.repeat_interleave(2, 1))


def test_reading_out_of_range_where_it_is_visible_is_an_error(brute_block_mask):
    q, k, v = inputs(40, 40)
    table = torch.ones(40, dtype=torch.float64)
    bias = score_mod(lambda s, b, h, q, kv: s + table[q - kv + 20])
    near = mask_mod(lambda b, h, q, kv: (q - kv < 20) & (kv - q <= 20))
    far = mask_mod(lambda b, h, q, kv: (q - kv < 21) & (kv - q <= 20))
    for mask, wrong in ((near, False), (far, True), (None, True)):
        blocks = None if mask is None else brute_block_mask(mask, (1, 1, 40, 40), (16, 16))
        if wrong:
            with pytest.raises(IndexError, match=r"score_mod reads .* \(b=0, h=0, q=20, kv=0\)"):
                forward(q, k, v, mask=blocks, score=bias, scale=1.0)
        else:
            expected = reference.attention(q, k, v, mask_mod=mask, scale=1.0)[0]
            assert_close(forward(q, k, v, mask=blocks, score=bias, scale=1.0)[0], expected)
    unchecked = forward(q, k, v, mask=None, score=bias, scale=1.0, check=False)[0]
    inside = score_mod(lambda s, b, h, q, kv: torch.where((q - kv < 20) & (kv - q <= 40), s + 1, s))
    assert_close(unchecked, reference.attention(q, k, v, score_mod=inside, scale=1.0)[0])


def test_a_mask_that_reads_out_of_range_is_an_error(brute_block_mask):
    q, k, v = inputs(40, 40)
    allowed = torch.ones(30, dtype=torch.bool)
    everywhere = torch.ones(1, 1, 3, 3, dtype=torch.long)
    wrong = brute_block_mask(mask_mod(lambda b, h, q, kv: allowed[q] | (kv >= 0)), (1, 1, 40, 40), (16, 16), everywhere)
    with pytest.raises(IndexError, match=r"mask_mod .*q=30"):
        forward(q, k, v, mask=wrong, score=None, scale=1.0)
    right = brute_block_mask(mask_mod(lambda b, h, q, kv: allowed[q] & (kv >= 0)), (1, 1, 40, 40), (16, 16), everywhere)
    assert not forward(q, k, v, mask=right, score=None, scale=1.0)[0][:, :, 30:].any()


@pytest.mark.parametrize("tile", [600, 1 << 20])
def test_dropout_does_not_depend_on_tiles(mask_named, brute_block_mask, monkeypatch, tile):
    monkeypatch.setattr("torch_flexattn.kernels.cpu.tile.TILE", tile)
    q, k, v = inputs(70, 83)
    mask = mask_named("streaming")
    b, h, i = (torch.arange(n).view(-1, *[1] * (3 - d)) for d, n in enumerate((2, 4, 70)))
    kept = keep(5 << 33 | 77, b, h, i + 9, 0, 83, 0.25)
    expected = reference.attention(q, k, v, mask_mod=mask, q_offset=9, dropout_mask=kept.double() / 0.75)
    everywhere = torch.ones(1, 1, 5, 6, dtype=torch.long)
    blocks = brute_block_mask(mask, (1, 1, 70, 83), (16, 16), everywhere)
    got = forward(q, k, v, mask=blocks, score=None, scale=8**-0.5, q_offset=9, dropout_p=0.25, seed=5 << 33 | 77)
    agree(got, expected)


@pytest.mark.parametrize(
    ("seed", "counter", "words"),
    [
        (0, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (-1, 2**32 - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ],
)
def test_numbers_are_those_of_the_published_generator(seed, counter, words):
    assert [int(word) for word in philox(seed, (torch.tensor(counter),) * 4)] == words


def test_dropout_keeps_the_mean():
    q, k, v = inputs(4, 6, batch=1, heads=1, kv_heads=1, v_width=1)
    whole = forward(q, k, v, mask=None, score=None, scale=1.0)[0]
    draws = torch.stack(
        [forward(q, k, v, mask=None, score=None, scale=1.0, dropout_p=0.4, seed=s)[0] for s in range(4096)]
    )
    assert ((draws.mean(0) - whole).abs() < 4 * draws.std(0) / 64).all()


# From section 7 of the package's specification.
Q = [[1, 0], [0, 1], [1, 1], [2, -1]]
K = [[1, 1], [0, 2], [-1, 0], [1, -1]]
V = [[1, 0], [0, 1], [2, 2], [-1, 3]]
MODS = {
    "alibi": lambda s, b, h, q, kv: s - 0.5 * (q - kv),
    "softcap": lambda s, b, h, q, kv: 2 * torch.tanh(s / 2),
}


@pytest.mark.parametrize(
    ("mask", "score", "sink", "rows", "lse", "largest"),
    [
        (
            "causal", None, None,
            {0: [1, 0], 1: [0.3302384507, 0.6697615493], 2: [0.5848210501] * 2, 3: [-0.5368028309, 2.3723852589]},
            {0: 0.7071067812, 1: 1.8150470888, 2: 2.1655698616, 3: 2.3847633496},
            {0: 0.7071067812, 1: 1.4142135624, 2: 1.4142135624, 3: 2.1213203436},
        ),
        (
            "causal", "alibi", None, {3: [-0.8409050082, 2.8135503334]},
            {0: 0.7071067812, 1: 1.6758554727, 2: 1.5043132374, 3: 2.2007266312}, {},
        ),
        ("causal", "softcap", None, {3: [-0.3051332788, 2.0779981624]}, {3: 1.9986748098}, {}),
        ("strict", None, None, {0: [0, 0], 3: [1, 0.2900752293]}, {0: -math.inf}, {0: -math.inf}),
        (
            "causal", None, 0.3,
            {0: [0.6003939368, 0], 1: [0.2707321175, 0.5490758635], 2: [0.5064227712] * 2,
             3: [-0.4774396378, 2.1100312695]}, {}, {},
        ),
    ],
)  # fmt: skip
def test_known_values(brute_block_mask, mask_named, mask, score, sink, rows, lse, largest):
    q, k, v = (torch.tensor(x, dtype=torch.float64).view(1, 1, 4, 2) for x in (Q, K, V))
    blocks = brute_block_mask(mask_named(mask), (1, 1, 4, 4), (16, 16))
    sinks = None if sink is None else torch.tensor([sink], dtype=torch.float64)
    mod = None if score is None else score_mod(MODS[score])
    got = forward(q, k, v, mask=blocks, score=mod, scale=0.5**0.5, sinks=sinks)
    for result, expected in zip(got, (rows, lse, largest)):
        for row, value in expected.items():
            assert_close(result[0, 0, row], torch.tensor(value, dtype=torch.float64), atol=1e-9, rtol=0)
