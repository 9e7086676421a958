"""8-bit floats in the Triton kernels: their bits, and attention by both ways of reading them.

On GPUs that know the type tensors are read as it, on others as bytes; both are tried wherever they can be.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch_flexattn import (
    PagedKVCache,
    create_block_mask,
    mask_mod,
    masks,
    quantize_fp8,
    reference,
    score_mod,
    scores,
)
from torch_flexattn.fp8 import rounded_to_fp8
from torch_flexattn.functional.fp8 import descales_of
from torch_flexattn.kernels.triton import attention, decode, eight_bits, write_pages
from torch_flexattn.kernels.triton.e4m3 import rounded_bits, widened
from torch_flexattn.kernels.triton.eight_bits import knows_fp8
from torch_flexattn.kernels.triton.tiles import Tiles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FP8 = torch.float8_e4m3fn
TINY = Tiles(16, 16, 4, 1)
CODES = torch.arange(256, dtype=torch.int32).to(torch.uint8)
SCALE = 0.3
WAYS = ["bits", "type"]


@triton.jit
def widen(codes, out, N: tl.constexpr):
    places = tl.arange(0, N)
    tl.store(out + places, widened(tl.load(codes + places), out.dtype.element_ty))


@triton.jit
def narrow(x, descale, out, N: tl.constexpr):
    places = tl.arange(0, N)
    tl.store(out + places, rounded_bits(tl.load(x + places), tl.load(descale)))


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """``"bits"``: as on a GPU that does not know the type."""
    if request.param == "type" and not knows_fp8(torch.device(DEVICE)):
        pytest.skip("this GPU does not know e4m3")
    if request.param == "bits":
        for module in (eight_bits, attention):
            monkeypatch.setattr(module, "knows_fp8", lambda device: False)
    return request.param


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_every_number_is_widened_exactly(way: str, dtype: torch.dtype) -> None:
    codes = CODES if way == "bits" else CODES.view(FP8)
    found = torch.empty(256, dtype=dtype, device=DEVICE)
    widen[1,](codes.to(DEVICE), found, N=256)
    found, right = found.cpu(), CODES.view(FP8).to(dtype)
    # Triton's interpreter makes 480 of a NaN that it reads as the type.
    numbers = torch.ones(256, dtype=torch.bool) if way == "bits" or DEVICE == "cuda" else ~right.isnan()
    torch.testing.assert_close(found[numbers], right[numbers], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found[~right.isnan()].signbit(), right[~right.isnan()].signbit())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("descale", [1.0, 0.37, 1e-3])
def test_numbers_are_rounded_as_pytorch_rounds_them(descale: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    special = torch.tensor([float("nan"), float("inf"), float("-inf"), 448.0, 464.0, 465.0, -1e38, -0.0])
    ties = torch.cat([torch.arange(500) / 1024, torch.arange(2000) / 4])
    spread = torch.randn(1588, generator=generator) * 10 ** torch.linspace(-5, 4, 1588)
    x = torch.cat([special, ties, spread])
    x = (x * descale).to(dtype)
    assert x.numel() == 4096
    found = torch.empty(4096, dtype=torch.uint8, device=DEVICE)
    factor = torch.tensor([descale])
    narrow[1,](x.to(DEVICE), factor.to(DEVICE), found, N=4096)
    found, right = found.cpu().view(FP8).float(), rounded_to_fp8(x, factor).float()
    torch.testing.assert_close(found, right, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found[~right.isnan()].signbit(), right[~right.isnan()].signbit())


def test_tokens_are_written_as_the_cache_of_a_cpu_writes_them() -> None:
    cache = PagedKVCache(4, 16, 2, 24, v_head_dim=40, max_seqs=2, dtype=FP8, k_descale=torch.tensor([0.02, 0.5]))
    seqs = [cache.allocate() for _ in range(2)]
    k, v = (torch.randn(2, 2, 19, width, generator=torch.Generator().manual_seed(width)) for width in (24, 40))
    cache.append(seqs, k, v)
    pages = [torch.zeros_like(of.view(torch.uint8)).view(FP8).to(DEVICE) for of in (cache.k_pages, cache.v_pages)]
    descales = torch.tensor([[0.02, 0.5], [1.0, 1.0]])
    rest = (cache.table, cache.lengths, torch.tensor([0, 1], dtype=torch.int32), descales)
    write_pages.write(k.to(DEVICE), v.to(DEVICE), *pages, *(t.to(DEVICE) for t in rest))
    for found, right in zip(pages, (cache.k_pages, cache.v_pages)):
        assert torch.equal(found.cpu().view(torch.uint8), right.view(torch.uint8))


CASES: dict[str, dict[str, Any]] = {
    "everything": {},
    "64 and 48 features": {"sizes": (1, 2, 2, 18, 33, 64, 48)},
    "softcap under a window": {"mask": masks.sliding_window(20), "score": scores.softcap(2.0)},
    "sinks": {"sinks": torch.tensor([0.3, -1.0, float("-inf"), 2.0])},
    "lengths": {"kv_lens": torch.tensor([20, 0])},
}


def exact_and_stored(sizes: tuple[int, ...], query: torch.dtype) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Features, those that they stand for in float64, and their factors."""
    batch, heads, kv_heads, rows, keys, width, width_v = sizes
    shapes = (batch, heads, rows, width), (batch, kv_heads, keys, width), (batch, kv_heads, keys, width_v)
    whole = [torch.randn(shape, generator=torch.Generator().manual_seed(n)) for n, shape in enumerate(shapes)]
    (q, of_q), (k, of_k), (v, of_v) = (quantize_fp8(t) for t in whole)
    factors = descales_of(q, k, v, of_q, of_k, of_v)
    exact = [t.double() * of[..., None, None].double() for t, of in ((q, of_q), (k, of_k), (v, of_v))]
    if query != FP8:
        q = whole[0].to(query)
        exact[0] = q.double()
        factors = descales_of(q, k, v, None, of_k, of_v)
    assert factors is not None
    return [q, k, v], exact, factors


def agree(found: tuple[Tensor, ...], right: tuple[Tensor, ...], exact: list[Tensor], query: torch.dtype) -> None:
    """Weights are rounded to 16 bits, values are exact, sums are float32, the result is rounded once more.

    A sum of products of 8 bits keeps about 13 bits of its largest term on Hopper (DeepSeek-V3, 2024, section 3.3.2).
    Triton's interpreter cuts bfloat16 off where GPUs round it.
    """
    out, lse, largest = (t.cpu() for t in found)
    of_result = 2.0**-11 if query == torch.float16 else 2.0**-8 if DEVICE == "cuda" else 2.0**-7
    of_weight, of_score = 2.0**-11, 1e-5
    q, k, v = exact
    if query == FP8 and DEVICE == "cuda":
        terms = q.abs() @ k.abs().repeat_interleave(q.shape[1] // k.shape[1], 1).mT
        of_score += float(terms.max()) * SCALE * 2.0**-13 * (q.shape[3] // 32 + 1)
    bound = right[0].abs() * of_result + float(v.abs().max()) * (of_weight + 2 * of_score)
    assert out.dtype == (torch.bfloat16 if query == FP8 else query)
    assert bool(((out.double() - right[0]).abs() <= bound).all())
    for a, b in ((lse, right[1]), (largest, right[2])):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=2 * of_score)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("kernel", "way", "query"),
    [
        ("blocks", "type", FP8), ("blocks", "bits", FP8), ("blocks", "bits", torch.float16), ("decode", "bits", FP8),
        ("decode", "type", torch.float16),
    ],
    indirect=["way"],
)  # fmt: skip
def test_equals_the_reference_of_what_is_stored(kernel: str, way: str, query: torch.dtype, name: str) -> None:
    case = dict(CASES[name])
    sizes = case.pop("sizes", (2, 4, 2, 20, 34, 16, 24))
    if kernel == "decode":
        sizes = (*sizes[:3], 3, *sizes[4:])
    stored, exact, factors = exact_and_stored(sizes, query)
    mask, score = case.pop("mask", None), case.pop("score", None)
    right = reference.attention(*exact, mask_mod=mask, score_mod=score, scale=SCALE, **case)
    if mask is not None:
        blocks = create_block_mask(mask, None, None, sizes[3], sizes[4], BLOCK_SIZE=16)
        mask = (mask_mod(mask) if kernel == "decode" else blocks).to(DEVICE)
    run = {"blocks": attention.forward, "decode": decode.decode}[kernel]
    options = {name: t.to(DEVICE) for name, t in case.items()} | ({"shares": 2} if kernel == "decode" else {})
    found = run(
        *(t.to(DEVICE) for t in stored), mask=mask, score=None if score is None else score_mod(score), scale=SCALE,
        descales=factors.to(DEVICE), tiles=TINY, **options,
    )  # fmt: skip
    agree(found, right, exact, query)
