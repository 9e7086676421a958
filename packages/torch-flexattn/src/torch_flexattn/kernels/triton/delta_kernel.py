"""The kernel of ``delta``."""

import triton
import triton.language as tl


@triton.jit
def row_products(
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
