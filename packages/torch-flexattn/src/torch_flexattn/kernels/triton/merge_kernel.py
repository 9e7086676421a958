"""The kernel of ``merge``."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["lines"])
def merge_rows(
    a_ptr, a_lse_ptr, b_ptr, b_lse_ptr, out_ptr, lse_ptr, a_sb, a_sh, a_sm, b_sb, b_sh, b_sm, o_sb, o_sh, o_sm, heads,
    rows, lines, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Some rows; those of a part that saw nothing are not read."""
    line = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = line < lines
    row = line % rows
    h = line // rows % heads
    b = line // rows // heads
    minus_infinity = float("-inf")
    a_lse = tl.load(a_lse_ptr + line, mask=exists, other=minus_infinity).to(tl.float32)
    b_lse = tl.load(b_lse_ptr + line, mask=exists, other=minus_infinity).to(tl.float32)
    top = tl.maximum(a_lse, b_lse)
    top = tl.where(top == minus_infinity, 0.0, top)
    of_a = tl.exp(a_lse - top)
    of_b = tl.exp(b_lse - top)
    total = of_a + of_b
    safe = tl.where(total == 0.0, 1.0, total)
    e = tl.arange(0, PADDED)[None, :]
    a_shown = (exists & (a_lse != minus_infinity))[:, None] & (e < WIDTH)
    b_shown = (exists & (b_lse != minus_infinity))[:, None] & (e < WIDTH)
    a = tl.load(a_ptr + (b * a_sb + h * a_sh + row * a_sm)[:, None] + e, mask=a_shown, other=0.0).to(tl.float32)
    other = tl.load(b_ptr + (b * b_sb + h * b_sh + row * b_sm)[:, None] + e, mask=b_shown, other=0.0).to(tl.float32)
    whole = a * (of_a / safe)[:, None] + other * (of_b / safe)[:, None]
    at = out_ptr + (b * o_sb + h * o_sh + row * o_sm)[:, None] + e
    tl.store(at, whole.to(out_ptr.dtype.element_ty), mask=exists[:, None] & (e < WIDTH))
    lse = tl.where(total == 0.0, minus_infinity, tl.log(safe) + top)
    tl.store(lse_ptr + line, lse, mask=exists)
