"""Sums in float32 become results: multiplied, rounded, and put where they belong, in one pass over memory."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .layout import ordered_like

ROWS = 32
LEAST = 16


def rounded_like(like: Tensor, sums: Tensor, factor: float) -> Tensor:
    """``factor · sums`` in the type and the dimension order of ``like``; ``sums`` is contiguous ``[B, H, L, E]``."""
    (batch, heads, rows, width), out = sums.shape, ordered_like(like, sums.shape[3])
    if out.numel():
        _rounded[-(-rows // ROWS), batch * heads](
            sums, out, factor, *out.stride()[:3], heads, rows, WIDTH=width,
            PADDED=max(triton.next_power_of_2(width), LEAST), ROWS=ROWS,
        )  # fmt: skip
    return out


@triton.jit
def _rounded(
    sums_ptr, out_ptr, factor, o_sb, o_sh, o_sm, heads, q_len, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    bh = tl.program_id(1)
    b = (bh // heads).to(tl.int64)
    h = (bh % heads).to(tl.int64)
    e = tl.arange(0, PADDED)[None, :]
    inside = (rows[:, None] < q_len) & (e < WIDTH)
    value = tl.load(sums_ptr + (bh.to(tl.int64) * q_len + rows[:, None]) * WIDTH + e, mask=inside, other=0.0)
    at = out_ptr + b * o_sb + h * o_sh + rows[:, None].to(tl.int64) * o_sm + e
    tl.store(at, (value * factor).to(out_ptr.dtype.element_ty), mask=inside)
