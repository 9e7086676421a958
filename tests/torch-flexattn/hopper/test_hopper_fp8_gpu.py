"""Hopper's forward kernel of 8-bit floats against the reference in float64 of what they stand for.

Weights are rounded to float16 (or to the query's type), values are exact, the result is rounded once; a sum of products
of 8 bits keeps about 13 bits of its largest term (DeepSeek-V3, 2024, section 3.3.2).
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_flexattn import create_block_mask, masks, quantize_fp8, reference, score_mod, scores
from torch_flexattn.functional.fp8 import descales_of

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")]
FP8 = torch.float8_e4m3fn
SHAPES = {  # batch, heads, heads of keys, queries, keys, features, features of values
    "plain": (2, 4, 4, 1000, 1000, 128, 128),
    "grouped": (1, 6, 2, 300, 700, 64, 64),
    "96": (1, 2, 2, 600, 513, 96, 96),
    "narrow": (1, 2, 2, 640, 640, 32, 128),
    "192 and 128": (1, 2, 2, 512, 512, 192, 128),
    "256": (1, 2, 2, 640, 333, 256, 256),
}
CASES: dict[str, dict[str, Any]] = {
    "everything": {},
    "causal": {"mask": masks.causal(), "sinks": True},
    "softcap under a window": {"mask": masks.causal() & masks.sliding_window(200), "score": scores.softcap(5.0)},
}


def features(shape: str, query: torch.dtype) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Stored, exact in float64, factors."""
    batch, heads, kv_heads, rows, keys, width, width_v = SHAPES[shape]
    generator = torch.Generator("cuda").manual_seed(0)

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(sizes, device="cuda", generator=generator)

    whole = drawn(batch, rows, heads, width).transpose(1, 2), drawn(batch, kv_heads, keys, width)
    (q, of_q), (k, of_k), (v, of_v) = map(quantize_fp8, (*whole, drawn(batch, kv_heads, keys, width_v)))
    exact = [t.double() * of[..., None, None].double() for t, of in ((q, of_q), (k, of_k), (v, of_v))]
    factors = descales_of(q, k, v, of_q, of_k, of_v)
    if query != FP8:
        q = whole[0].to(query)
        exact[0] = q.double()
        factors = descales_of(q, k, v, None, of_k, of_v)
    assert factors is not None
    return [q, k, v], exact, factors


@pytest.mark.parametrize("query", [FP8, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", SHAPES)
def test_forward(shape: str, name: str, query: torch.dtype) -> None:
    from torch_flexattn.kernels.hopper import attention

    stored, exact, factors = features(shape, query)
    q, k, v = exact
    case, scale = dict(CASES[name]), 1 / math.sqrt(q.shape[3])
    mask, score = case.pop("mask", None), case.pop("score", None)
    sinks = torch.linspace(-1, 2, q.shape[1], device="cuda") if case.pop("sinks", False) else None
    blocks = None if mask is None else create_block_mask(mask, None, None, q.shape[2], k.shape[2], device="cuda")
    assert attention.serves_forward(*stored, blocks, None, 0.0)
    out, lse, largest = attention.forward(
        *stored, mask=blocks, score=None if score is None else score_mod(score), scale=scale, sinks=sinks,
        descales=factors,
    )  # fmt: skip
    right = reference.attention(*exact, mask_mod=mask, score_mod=score, scale=scale, sinks=sinks)
    assert out.dtype == (torch.bfloat16 if query == FP8 else query)
    of_result = 2.0**-11 if query == torch.float16 else 2.0**-8
    of_weight = 2.0**-8 if query == torch.bfloat16 else 2.0**-11
    terms = q.abs() @ k.abs().repeat_interleave(q.shape[1] // k.shape[1], 1).mT
    of_score = 1e-4 + (float(terms.max()) * scale * 2.0**-13 * (q.shape[3] // 32 + 1) if query == FP8 else 0.0)
    bound = right[0].abs() * of_result + float(v.abs().max()) * (of_weight + 2 * of_score)
    wrong = (out.double() - right[0]).abs() - bound
    assert float(wrong.max()) <= 0
    for a, b in ((lse, right[1]), (largest, right[2])):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=2 * of_score)


def test_what_it_does_not_serve() -> None:
    from torch_flexattn.kernels.hopper import attention

    def of(rows: int, width: int, width_v: int = 64, query: torch.dtype = FP8) -> bool:
        q, k = (torch.zeros(1, 1, n, width, device="cuda").to(t) for n, t in ((rows, query), (600, FP8)))
        v = torch.zeros(1, 1, 600, width_v, device="cuda").to(FP8)
        return attention.serves_forward(q, k, v, None, None, 0.0)

    assert of(600, 64)
    assert of(600, 80, query=torch.float16)
    assert not of(600, 80)  # 16 features of 8 bits are fewer than an instruction sums over
    assert not of(200, 64)  # the copy would not pay
    assert not of(600, 64, 60)  # the copy engine reads rows of multiples of 16 bytes
    assert not of(600, 64, query=torch.float32)
