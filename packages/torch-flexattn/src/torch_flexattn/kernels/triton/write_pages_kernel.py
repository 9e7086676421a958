"""The kernel of ``write_pages``; pages of 8 bits come as bytes."""

import triton
import triton.language as tl

from torch_flexattn.kernels.triton.e4m3 import rounded_bits


@triton.jit(do_not_specialize=["tokens"])
def copy_tokens(
    k, v, k_pages, v_pages, table, lengths, slots, k_sb, k_sh, k_sn, k_se, v_sb, v_sh, v_sn, v_se, k_sp, k_st, k_sg,
    v_sp, v_st, v_sg, table_s, descales, d_k, tokens, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    PAGE: tl.constexpr, PADDED: tl.constexpr,
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
    if k_pages.dtype.element_ty == tl.uint8:
        key = rounded_bits(key, tl.load(descales + h))
    tl.store(k_pages + page * k_sp + place % PAGE * k_st + h * k_sg + e, key, mask=e < WIDTH)
    source = v + n.to(tl.int64) * v_sb + h * v_sh + token.to(tl.int64) * v_sn
    value = tl.load(source + e * v_se, mask=e < VALUE_WIDTH)
    if v_pages.dtype.element_ty == tl.uint8:
        value = rounded_bits(value, tl.load(descales + d_k + h))
    tl.store(v_pages + page * v_sp + place % PAGE * v_st + h * v_sg + e, value, mask=e < VALUE_WIDTH)
