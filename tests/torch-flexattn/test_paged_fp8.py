"""Paged caches of 8 bits: what is stored, what is computed from it, and what it takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_flexattn import InputError, KindError, PagedKVCache, masks, quantize_fp8, reference, scores

FP8 = torch.float8_e4m3fn
HEADS, WIDTH, WIDTH_V = 2, 16, 24
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
K_DESCALE, V_DESCALE = torch.tensor([0.02, 0.5]), 0.1


def cache_of(**options: Any) -> PagedKVCache:
    options = {"dtype": FP8, "k_descale": K_DESCALE, "v_descale": V_DESCALE, **options}
    return PagedKVCache(8, 16, HEADS, WIDTH, max_seqs=4, v_head_dim=WIDTH_V, **options)


def tokens(count: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(1, HEADS, count, width, generator=generator).to(dtype) for width in (WIDTH, WIDTH_V))


def stored(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """What the cache keeps of tokens, in float64."""
    (k8, of_k), (v8, of_v) = quantize_fp8(k, K_DESCALE), quantize_fp8(v, torch.tensor(V_DESCALE))
    return k8.double() * of_k.double()[:, None, None], v8.double() * of_v.double()


def expected(q: Tensor, whole: list[tuple[Tensor, Tensor]], **options: Any) -> Tensor:
    """One sequence at a time, by the dense reference of what is stored."""
    rows = []
    for own, tokens_of in zip(q.split(1), whole):
        k, v = stored(*tokens_of)
        rows.append(reference.attention(own, k, v, q_offset=k.shape[2] - q.shape[2], **options)[0])
    return torch.cat(rows)


def agree(found: Tensor, right: Tensor) -> None:
    """Of float32 queries all is summed in float32."""
    torch.testing.assert_close(found.cpu().double(), right, rtol=0, atol=2e-5)


@pytest.mark.parametrize("backend", ["cpu", "triton"])
@pytest.mark.parametrize("queries", [2, 17])
def test_attention_equals_that_of_what_is_stored(queries: int, backend: str) -> None:
    if backend == "triton":
        pytest.importorskip("triton")
    cache = cache_of(device=DEVICE)
    seqs, whole = [cache.allocate() for _ in range(2)], [tokens(40, 0), tokens(17, 1)]
    for seq, (k, v) in zip(seqs, whole):
        cache.append([seq], k.to(DEVICE), v.to(DEVICE))
    q = torch.randn(2, 4, queries, WIDTH, generator=torch.Generator().manual_seed(5))
    found = cache.attend(q.to(DEVICE), seqs[::-1], scores.softcap(2.0), masks.causal(), backend=backend)
    agree(found, expected(q, whole[::-1], score_mod=scores.softcap(2.0), mask_mod=masks.causal()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_queries_of_16_bits(dtype: torch.dtype) -> None:
    """On a CPU sums are float32, and the result is rounded to half a place."""
    cache = cache_of()
    seq, (k, v) = cache.allocate(), tokens(40, 0, dtype)
    cache.append([seq], k, v)
    q = torch.randn(1, 4, 1, WIDTH, generator=torch.Generator().manual_seed(5)).to(dtype)
    found = cache.attend(q, [seq])
    right = expected(q, [(k, v)])
    assert found.dtype == dtype
    half_a_place = 2.0**-11 if dtype == torch.float16 else 2.0**-8
    assert bool(((found.double() - right).abs() <= right.abs() * half_a_place + 2e-5).all())


def test_forks_prefixes_and_trimming() -> None:
    cache = cache_of()
    first, (k, v) = cache.allocate(), tokens(21, 0)
    cache.append([first], k, v)
    second, third = cache.fork(first), cache.share_prefix(first, 18)
    (k1, v1), (k2, v2) = tokens(2, 1), tokens(2, 2)
    cache.append([first, second], torch.cat([k1, k2]), torch.cat([v1, v2]))
    cache.trim(first, 20)
    whole = [
        (k[:, :, :20], v[:, :, :20]),
        (torch.cat([k, k2], 2), torch.cat([v, v2], 2)),
        (k[:, :, :18], v[:, :, :18]),
    ]
    q = torch.randn(3, 4, 1, WIDTH, generator=torch.Generator().manual_seed(5))
    agree(cache.attend(q, [first, second, third]), expected(q, whole))


def test_bytes_are_half_of_16_bits_but_for_the_factors() -> None:
    wide = PagedKVCache(8, 16, HEADS, WIDTH, max_seqs=4, v_head_dim=WIDTH_V, dtype=torch.float16)
    table = 4 * 4 * (8 + 1)
    of_pages = 8 * 16 * HEADS * (WIDTH + WIDTH_V)
    assert wide.stats().memory_bytes == 2 * of_pages + table
    assert cache_of().stats().memory_bytes == of_pages + table + 2 * HEADS * 4


def test_factors_are_1_if_none_are_given() -> None:
    cache = cache_of(k_descale=None, v_descale=None)
    seq, (k, v) = cache.allocate(), tokens(5, 0)
    cache.append([seq], k, v)
    page = cache.block_table([seq])[0, 0]
    assert torch.equal(cache.k_pages[page, :5].float().transpose(0, 1), k[0].to(FP8).float())
    assert cache.dtype == FP8


def test_what_is_too_large_is_cut_off_and_what_is_no_number_stays_none() -> None:
    cache = cache_of(k_descale=1.0, v_descale=1.0)
    seq, (k, v) = cache.allocate(), tokens(1, 0)
    k[0, 0, 0, :4] = torch.tensor([1e6, -1e6, float("nan"), float("inf")])
    cache.append([seq], k, v)
    found = cache.k_pages[cache.block_table([seq])[0, 0], 0, 0, :4].float()
    torch.testing.assert_close(found, torch.tensor([448.0, -448.0, float("nan"), float("nan")]), equal_nan=True)


def test_wrong_factors_and_types() -> None:
    for given, kind in ((0.0, InputError), (-1, InputError), (torch.ones(3), InputError), ("a", KindError)):
        with pytest.raises(kind, match="k_descale"):
            cache_of(k_descale=given)
    with pytest.raises(InputError, match=r"v_descale.*nan"):
        cache_of(v_descale=torch.tensor([1.0, float("nan")]))
    with pytest.raises(KindError, match=r"v_descale.*int64"):
        cache_of(v_descale=torch.ones(2, dtype=torch.int64))
    with pytest.raises(InputError, match=r"k_descale.*float16"):
        cache_of(dtype=torch.float16)
    cache = cache_of()
    seq, (k, v) = cache.allocate(), tokens(1, 0)
    with pytest.raises(KindError, match=r"k must .*float16 or bfloat16.*float8_e4m3fn.*got torch.float64"):
        cache.append([seq], k.double(), v)
