"""What every row of the backward pass subtracts: the product of its output and the output's gradient."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32
LEAST = 16


def row_products(out: Tensor, grad_out: Tensor, grad_lse: Tensor | None, sums: Tensor) -> Tensor:
    """``Σ_d out · grad_out - grad_lse`` of each row, float32 ``[B, H, L]``; features lie side by side.

    ``sums``, contiguous ``[B, H, L, E]``, which tiles are going to be added to, is filled with zeros on the way.
    """
    batch, heads, rows, width = out.shape
    found = torch.empty(batch, heads, rows, dtype=torch.float32, device=out.device)
    if found.numel():
        padded, padded_sums = (max(triton.next_power_of_2(n), LEAST) for n in (width, sums.shape[3]))
        _row_products[-(-rows // ROWS), batch * heads](
            out, grad_out, grad_lse, found, sums, *out.stride()[:3], *grad_out.stride()[:3], heads, rows, WIDTH=width,
            PADDED=padded, SUMS=sums.shape[3], PADDED_SUMS=padded_sums, HAS_LSE=grad_lse is not None, ROWS=ROWS,
        )  # fmt: skip
    return found


@triton.jit
def _row_products(
    o_ptr, do_ptr, dlse_ptr, found_ptr, sums_ptr, o_sb, o_sh, o_sm, do_sb, do_sh, do_sm, heads, q_len,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, SUMS: tl.constexpr, PADDED_SUMS: tl.constexpr, HAS_LSE: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    bh = tl.program_id(1)
    b = (bh // heads).to(tl.int64)
    h = (bh % heads).to(tl.int64)
    e = tl.arange(0, PADDED)[None, :]
    at = rows[:, None].to(tl.int64)
    inside = (rows[:, None] < q_len) & (e < WIDTH)
    o = tl.load(o_ptr + b * o_sb + h * o_sh + at * o_sm + e, mask=inside, other=0.0)
    do = tl.load(do_ptr + b * do_sb + h * do_sh + at * do_sm + e, mask=inside, other=0.0)
    total = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    l_at = bh.to(tl.int64) * q_len + rows
    if HAS_LSE:
        total -= tl.load(dlse_ptr + l_at, mask=rows < q_len, other=0.0)
    tl.store(found_ptr + l_at, total, mask=rows < q_len)
    f = tl.arange(0, PADDED_SUMS)[None, :]
    zeros = tl.zeros([ROWS, PADDED_SUMS], tl.float32)
    tl.store(sums_ptr + l_at[:, None] * SUMS + f, zeros, mask=(rows[:, None] < q_len) & (f < SUMS))
