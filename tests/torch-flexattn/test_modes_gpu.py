"""``deterministic`` and ``batch_invariant`` on a GPU, where the order of additions is anybody's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_flexattn import (
    PagedKVCache,
    UnsupportedError,
    flex_attention,
    flex_attention_varlen,
    masks,
    quantize_fp8,
    scores,
)

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
DTYPES = [torch.bfloat16, torch.float32]


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed)).to(dtype)


def features(batch: int, queries: int, keys: int, width: int = 64, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    """Of 8 heads that share 4."""
    shapes = (batch, 8, queries, width), (batch, 4, keys, width), (batch, 4, keys, width)
    return [drawn(*shape, seed=n, dtype=dtype) for n, shape in enumerate(shapes)]


def learnt(*shape: int) -> Tensor:
    return (0.3 * drawn(*shape, seed=len(shape))).requires_grad_()


def captured(name: str) -> tuple[Any, list[Tensor]]:
    """A score modification for 8 heads and up to 1,100 positions, and what it captures."""
    if name == "nothing":
        return None, []
    number, heads, rows, table = learnt(), learnt(8), learnt(1100), learnt(8, 2200)
    pairs, of_heads, buckets = learnt(1100, 1100), learnt(8, 1100, 1100), learnt(32, 8)
    mods: dict[str, tuple[Any, list[Tensor]]] = {
        "a number": (lambda s, b, h, i, j: s * number, [number]),
        "of a head": (lambda s, b, h, i, j: s * heads[h], [heads]),
        "of a query and a key": (lambda s, b, h, i, j: s + rows[i] * rows[j], [rows]),
        "of a distance": (lambda s, b, h, i, j: s + table[h, i - j + 1100], [table]),
        "of a bucket": (lambda s, b, h, i, j: s + buckets[torch.clamp((i - j).abs() // 9, max=31), h], [buckets]),
        "of a pair": (lambda s, b, h, i, j: s + pairs[i, j], [pairs]),
        "of a pair of each head": (lambda s, b, h, i, j: s + of_heads[h, i, j], [of_heads]),
        "of a pair, both ways": (lambda s, b, h, i, j: s + pairs[i, j] * pairs[j, i], [pairs]),
        "several": (
            lambda s, b, h, i, j: torch.tanh(s * number) * heads[h] + rows[j] + of_heads[h, i, j],
            [number, heads, rows, of_heads],
        ),
    }
    return mods[name]


KINDS = [
    "nothing", "a number", "of a head", "of a query and a key", "of a distance", "of a bucket", "of a pair",
    "of a pair of each head", "of a pair, both ways", "several",
]  # fmt: skip


def twice(inputs: list[Tensor], runs: int = 4, **options: Any) -> list[Tensor]:
    """Gradients, equal in several runs."""
    found: list[list[Tensor]] = []
    for _ in range(runs):
        out, lse = flex_attention(*inputs[:3], enable_gqa=True, return_lse=True, **options)
        loss = out.float().sin().sum() + lse.clamp(min=-1e3).cos().sum()
        found.append([out, lse, *torch.autograd.grad(loss, inputs)])
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))
    return found[0]


def agree(found: list[Tensor], right: list[Tensor], tolerance: float) -> None:
    for one, other in zip(found, right, strict=True):
        scale = max(float(other[other.isfinite()].detach().abs().max()), 1e-3)
        torch.testing.assert_close(one.float(), other.float(), atol=tolerance * scale, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_two_runs_give_equal_bits(kind: str, dtype: torch.dtype) -> None:
    """And the gradients are those of the reference."""
    score, tensors = captured(kind)
    inputs = [*(t.requires_grad_() for t in features(2, 1000, 1100, dtype=dtype)), *tensors]
    found = twice(inputs, score_mod=score, mask_mod=masks.causal("bottom_right"), deterministic=True)
    out, lse = flex_attention(
        *inputs[:3], score, masks.causal("bottom_right"), enable_gqa=True, return_lse=True, backend="reference"
    )
    loss = out.float().sin().sum() + lse.clamp(min=-1e3).cos().sum()
    agree(found, [out, lse, *torch.autograd.grad(loss, inputs)], 2e-5 if dtype == torch.float32 else 0.03)


OPTIONS: dict[str, Any] = {
    "sinks": lambda: {"sinks": learnt(8)},
    "dropout": lambda: {"dropout_p": 0.2, "seed": 3},
    "offsets and lengths": lambda: {
        "mask_mod": masks.causal(),
        "q_offset": torch.tensor([0, 500], device="cuda"),
        "kv_lens": torch.tensor([300, 1100], device="cuda"),
    },
    "documents": lambda: {"mask_mod": masks.document(torch.tensor([0, 77, 500, 1000], device="cuda"), causal=True)},
}


@pytest.mark.parametrize("width", [64, 128, 192])
@pytest.mark.parametrize("name", OPTIONS)
def test_options_give_equal_bits(name: str, width: int) -> None:
    options = OPTIONS[name]()
    keys = 1000 if name == "documents" else 1100
    table = learnt(2200)
    inputs = [*(t.requires_grad_() for t in features(2, 1000, keys, width)), table]
    inputs += [t for t in (options.get("sinks"),) if t is not None]
    options["score_mod"] = lambda s, b, h, i, j: s + table[(i - j).abs()]
    found = twice(inputs, deterministic=True, **options)
    agree(found, twice(inputs, runs=1, deterministic=False, **options), 0.03)


def test_keys_of_all_the_batch_give_equal_bits() -> None:
    q, k, v = features(4, 700, 700)
    twice([q.requires_grad_(), k[:1].clone().requires_grad_(), v[:1].clone().requires_grad_()], deterministic=True)


def test_the_switch_is_followed() -> None:
    score, tensors = captured("of a bucket")
    inputs = [*(t.requires_grad_() for t in features(2, 1000, 1000)), *tensors]
    torch.use_deterministic_algorithms(True)
    try:
        found = twice(inputs, score_mod=score, mask_mod=masks.sliding_window(300))
    finally:
        torch.use_deterministic_algorithms(False)
    asked = twice(inputs, runs=1, score_mod=score, mask_mod=masks.sliding_window(300), deterministic=True)
    assert all(torch.equal(one, other) for one, other in zip(found, asked, strict=True))


@pytest.mark.filterwarnings("ignore:attention on cuda")
def test_blocks_in_pytorch_operations_give_equal_bits() -> None:
    table = (0.3 * drawn(50)).double().requires_grad_()
    inputs = [*(t.requires_grad_() for t in features(2, 300, 300, dtype=torch.float64)), table]
    twice(inputs, score_mod=lambda s, b, h, i, j: s + table[(i * 7 + j) % 50], deterministic=True)


def test_a_captured_graph_gives_the_same_bits() -> None:
    score, (table,) = captured("of a distance")
    q, k, v = (t.requires_grad_() for t in features(1, 512, 512))

    def step() -> tuple[Tensor, ...]:
        out = flex_attention(q, k, v, score, masks.causal(), enable_gqa=True, deterministic=True)
        return torch.autograd.grad(out.float().square().sum(), [q, k, v, table])

    expected = step()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


ORDER = [3, 0, 5, 1, 4, 2]


def same_in_any_batch(inputs: list[Tensor], lens: Tensor | None = None, offset: bool = False, **options: Any) -> None:
    """In another order, and each entry alone with no more keys than it has."""

    def run(entries: list[int], keys: int | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = inputs
        own = None if lens is None else lens[entries]
        start = None if own is None or not offset else own - q.shape[2]
        return flex_attention(
            q[entries], k[entries][:, :, :keys], v[entries][:, :, :keys], enable_gqa=True, return_lse=True,
            kv_lens=own, q_offset=start, batch_invariant=True, **options,
        )  # fmt: skip

    whole, again = run(list(range(6))), run(ORDER)
    assert all(torch.equal(one[ORDER], other) for one, other in zip(whole, again, strict=True))
    for number in range(6):
        alone = run([number], None if lens is None else int(lens[number]))
        assert all(torch.equal(one[number], other[0]) for one, other in zip(whole, alone, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [40, 1000])
@pytest.mark.parametrize("mask", [None, masks.causal(), masks.sliding_window(300)])
def test_prompts_are_the_same_in_any_batch(mask: Any, queries: int, dtype: torch.dtype) -> None:
    same_in_any_batch(features(6, queries, 1000, dtype=dtype), mask_mod=mask)
    same_in_any_batch(features(6, queries, 1000, dtype=dtype), mask_mod=mask, score_mod=scores.softcap(20.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_prompts_of_any_lengths_are_the_same(dtype: torch.dtype) -> None:
    lens = torch.tensor([1000, 300, 512, 40, 999, 128], device="cuda")
    same_in_any_batch(features(6, 40, 1000, dtype=dtype), lens, True, mask_mod=masks.causal())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("mask", [None, masks.causal(), masks.causal() & masks.sliding_window(5000)])
def test_decoding_is_the_same_in_any_batch(mask: Any, queries: int, dtype: torch.dtype) -> None:
    """Of sequences of one share, of a few, and of more than are merged at a time."""
    lens = torch.tensor([100, 2048, 2049, 9000, 70000, 4], device="cuda")
    inputs = features(6, queries, 70000, dtype=dtype)
    same_in_any_batch(inputs, lens, True, mask_mod=mask)
    q, k, v = (t.double() for t in inputs)
    options: dict[str, Any] = {"mask_mod": mask, "kv_lens": lens, "q_offset": lens - queries, "enable_gqa": True}
    found = flex_attention(*inputs, batch_invariant=True, **options)
    chosen = [1, 2, 5]
    options |= {"kv_lens": lens[chosen], "q_offset": lens[chosen] - queries}
    right = flex_attention(q[chosen], k[chosen, :, :2049], v[chosen, :, :2049], backend="reference", **options)
    torch.testing.assert_close(found[chosen].double(), right, atol=2e-5 if dtype == torch.float32 else 2e-2, rtol=0)


@pytest.mark.parametrize("queries", [1, 40, 600])
def test_8_bit_entries_are_the_same_in_any_batch(queries: int) -> None:
    """With factors of each entry: few queries, the portable kernel, and Hopper's."""
    (q, of_q), (k, of_k), (v, of_v) = (quantize_fp8(t) for t in features(6, queries, 5000, 128))

    def run(entries: list[int]) -> tuple[Tensor, Tensor]:
        return flex_attention(
            q[entries], k[entries], v[entries], scores.softcap(20.0), enable_gqa=True, return_lse=True,
            q_descale=of_q[entries], k_descale=of_k[entries], v_descale=of_v[entries], batch_invariant=True,
        )  # fmt: skip

    whole = run(list(range(6)))
    for entries in (ORDER, [4]):
        assert all(torch.equal(one[entries], other) for one, other in zip(whole, run(entries), strict=True))
    right = flex_attention(
        q, k, v, scores.softcap(20.0), enable_gqa=True, q_descale=of_q, k_descale=of_k, v_descale=of_v,
        backend="reference",
    )  # fmt: skip
    torch.testing.assert_close(whole[0].double(), right.double(), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("queries", [1, 40])
def test_8_bit_pages_are_the_same_beside_any_others(queries: int) -> None:
    lengths, eight = [100, 5000, 2049], torch.float8_e4m3fn
    cache = PagedKVCache(512, 16, 4, 64, max_seqs=3, dtype=eight, device="cuda", k_descale=0.02, v_descale=0.03)
    seqs = [cache.allocate() for _ in lengths]
    for number, (seq, length) in enumerate(zip(seqs, lengths)):
        cache.append([seq], *(drawn(1, 4, length, 64, seed=2 * number + n, dtype=torch.bfloat16) for n in range(2)))
    q = drawn(3, 8, queries, 64, seed=99, dtype=torch.bfloat16)
    whole = cache.attend(q, seqs, mask_mod=masks.causal(), batch_invariant=True)
    for number in range(3):
        alone = cache.attend(q[[number]], [seqs[number]], mask_mod=masks.causal(), batch_invariant=True)
        assert torch.equal(alone[0], whole[number])


def test_packed_8_bit_sequences_are_the_same_at_any_place() -> None:
    lengths = [70, 513, 128]
    parts = [drawn(sum(lengths), 8, 64, seed=n).to(torch.float8_e4m3fn).split(lengths) for n in range(3)]

    def run(order: list[int]) -> list[Tensor]:
        sizes = [lengths[n] for n in order]
        starts = torch.tensor([0, *torch.tensor(sizes).cumsum(0)], device="cuda")
        # Joined as bytes, which PyTorch can do everywhere.
        q, k, v = (torch.cat([p[n].view(torch.uint8) for n in order]).view(torch.float8_e4m3fn) for p in parts)
        out = flex_attention_varlen(q, k, v, starts, starts, mask_mod=masks.causal(), batch_invariant=True)
        return list(out.split(sizes))

    whole = run([0, 1, 2])
    for order in ([2, 0, 1], [1]):
        assert all(torch.equal(one, whole[n]) for one, n in zip(run(order), order, strict=True))


@pytest.mark.parametrize("queries", [1, 300])
def test_sizes_of_a_caller_keep_bits(queries: int) -> None:
    options = {"fwd_BLOCK_N": 32, "fwd_num_stages": 2}
    same_in_any_batch(features(6, queries, 1000), kernel_options=options, score_mod=scores.softcap(20.0))


@pytest.mark.parametrize("backend", ["auto", "triton"])
def test_options_of_kernels_keep_bits_of_gradients(backend: Any) -> None:
    """The sizes given are the forward pass's; the backward pass has its own."""
    inputs = [t.requires_grad_() for t in features(2, 1000, 1000)]
    options = {"deterministic": True, "backend": backend, "mask_mod": masks.causal()}
    found = twice(inputs, kernel_options={"BLOCK_N": 64, "num_stages": 2}, **options)
    agree(found, twice(inputs, runs=1, **options), 0.03)


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability()[0] != 9, reason="needs a Hopper GPU"
)
def test_a_named_hopper_refuses_deterministic_gradients() -> None:
    inputs = [t.requires_grad_() for t in features(1, 512, 512)]
    torch.use_deterministic_algorithms(True)
    try:
        out = flex_attention(*inputs, enable_gqa=True, backend="hopper")
        with pytest.raises(UnsupportedError, match="backend='hopper': the backward kernels add in an order"):
            out.backward(torch.ones_like(out))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize("queries", [1, 40])
def test_a_sequence_in_pages_is_the_same_beside_any_others(queries: int, page: int) -> None:
    lengths = [100, 5000, 2048, 41, 3000, 2049]
    cache = PagedKVCache(16384 // page, page, 4, 64, max_seqs=6, dtype=torch.bfloat16, device="cuda")
    seqs = [cache.allocate() for _ in lengths]
    for number, (seq, length) in enumerate(zip(seqs, lengths)):
        k, v = (drawn(1, 4, length, 64, seed=2 * number + n, dtype=torch.bfloat16) for n in range(2))
        cache.append([seq], k, v)
    q = drawn(6, 8, queries, 64, seed=99, dtype=torch.bfloat16)

    def attend(entries: list[int]) -> Tensor:
        chosen = [seqs[n] for n in entries]
        return cache.attend(q[entries], chosen, mask_mod=masks.causal(), batch_invariant=True)

    whole = attend(list(range(6)))
    assert torch.equal(attend(ORDER), whole[ORDER])
    for number in range(6):
        assert torch.equal(attend([number])[0], whole[number])
    if queries == 1:  # as many shares as the cache has room for
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = cache.attend(q, seqs, mask_mod=masks.causal(), batch_invariant=True)
        graph.replay()
        assert torch.equal(out, whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("score", [None, scores.softcap(20.0)])
def test_a_packed_sequence_is_the_same_at_any_place(score: Any, dtype: torch.dtype) -> None:
    lengths = [70, 300, 1, 0, 513, 128]
    parts = [drawn(sum(lengths), 8, 64, seed=n, dtype=dtype).split(lengths) for n in range(3)]

    def run(order: list[int]) -> list[Tensor]:
        sizes = [lengths[n] for n in order]
        starts = torch.tensor([0, *torch.tensor(sizes).cumsum(0)], device="cuda")
        q, k, v = (torch.cat([part[n] for n in order]) for part in parts)
        out, lse = flex_attention_varlen(
            q, k, v, starts, starts, score_mod=score, mask_mod=masks.causal(), return_lse=True, batch_invariant=True
        )
        return [torch.cat([o.float(), e.unsqueeze(-1)], -1) for o, e in zip(out.split(sizes), lse.split(sizes))]

    whole = run(list(range(6)))
    for order in ([4, 0, 5, 1, 3, 2], [1], [4], [2, 5]):
        assert all(torch.equal(one, whole[n]) for one, n in zip(run(order), order, strict=True))
