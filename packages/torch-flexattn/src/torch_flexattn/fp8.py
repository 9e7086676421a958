"""8-bit floats: e4m3, with 3 bits of mantissa, numbers to 448, one NaN and no infinity (``torch.float8_e4m3fn``).

A number that is stored stands for itself times a scale, which is its head's (Micikevicius et al., *FP8 Formats for Deep
Learning*, 2022). From 1/64 to 448 rounding is off by 1/16 at most, whatever the scale; below, down to 1/512, by 1/1024.
"""

from __future__ import annotations

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
NO_GRADIENT = (
    f"attention of 8-bit features has no gradient, and key is {FP8}: "
    "call it under torch.no_grad(), or train with 16 bits"
)


def result_dtype(query: torch.dtype) -> torch.dtype:
    """Of the output of a query in a type.

    bfloat16 for 8 bits: results are means of values, and its 8 bits of mantissa hold more than e4m3's values had.
    """
    return torch.bfloat16 if query == FP8 else query


def as_bits(t: Tensor) -> Tensor:
    """8-bit floats as bytes, which every operation that moves them takes; others as they are."""
    return t.view(torch.uint8) if t.dtype == FP8 else t


def rounded_to_fp8(x: Tensor, descale: Tensor) -> Tensor:
    """``x / descale`` in 8 bits: to ±448 where it is more, NaN where ``x`` is NaN or infinite."""
    wide = x.float()
    return (wide / descale).clamp(-LARGEST, LARGEST).where(wide.isfinite(), float("nan")).to(FP8)
