"""The kernel of ``write_pages``."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens"])
def copy_tokens(
    k, v, k_pages, v_pages, table, lengths, slots, k_sb, k_sh, k_sn, k_se, v_sb, v_sh, v_sn, v_se, k_sp, k_st, k_sg,
    v_sp, v_st, v_sg, table_s, tokens, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, PAGE: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """One token of one head."""
    n = tl.program_id(0) // tokens
    token = tl.program_id(0) % tokens
    h = tl.program_id(1)
    slot = tl.load(slots + n).to(tl.int64)
    place = tl.load(lengths + slot) - tokens + token
    page = tl.load(table + slot * table_s + place // PAGE).to(tl.int64)
    e = tl.arange(0, PADDED)
    source = k + n.to(tl.int64) * k_sb + h * k_sh + token.to(tl.int64) * k_sn
    key = tl.load(source + e * k_se, mask=e < WIDTH)
    tl.store(k_pages + page * k_sp + place % PAGE * k_st + h * k_sg + e, key, mask=e < WIDTH)
    source = v + n.to(tl.int64) * v_sb + h * v_sh + token.to(tl.int64) * v_sn
    value = tl.load(source + e * v_se, mask=e < VALUE_WIDTH)
    tl.store(v_pages + page * v_sp + place % PAGE * v_st + h * v_sg + e, value, mask=e < VALUE_WIDTH)
