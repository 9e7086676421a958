"""The kernel of ``rounded``."""

import triton
import triton.language as tl


@triton.jit
def rounded(
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
