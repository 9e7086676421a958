"""Attention of each query to blocks of its own: one program a query and key head, forward and for the query's gradient.

The query heads that share a key head are the rows of one tile, padded to 16. All of them see the same keys, so
invisible keys are never read.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _place(pid, q_len, kv_heads, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """Query, batch, key head, and which heads of the group are the rows."""
    token = pid % q_len
    plane = pid // q_len
    TILES: tl.constexpr = (GROUP + BLOCK_M - 1) // BLOCK_M
    member = plane % TILES * BLOCK_M + tl.arange(0, BLOCK_M)
    plane = plane // TILES
    return token, plane // kv_heads, plane % kv_heads, member


@triton.jit
def _listed(blocks_ptr, line, position, columns, COUNT, LISTED, BLOCK, CAUSAL: tl.constexpr):
    """How many of the listed blocks have to be looked at."""
    n = tl.arange(0, LISTED)
    block = tl.load(blocks_ptr + line * COUNT + n, mask=n < COUNT, other=-1)
    here = (block >= 0) & (block < columns)
    if CAUSAL:
        here = here & (block * BLOCK <= position)
    return tl.max(tl.where(here, n + 1, 0), 0)


@triton.jit
def _keys(
    blocks_ptr, line, step, position, kv_len, columns, COUNT, BLOCK, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr
):  # fmt: skip
    """Keys of a step, and which of them are visible."""
    PARTS: tl.constexpr = BLOCK // BLOCK_N
    block = tl.load(blocks_ptr + line * COUNT + step // PARTS)
    first = tl.minimum(tl.maximum(block, 0), columns).to(tl.int32) * BLOCK  # stays within 32 bits where there is none
    key = first + step % PARTS * BLOCK_N + tl.arange(0, BLOCK_N)
    seen = (key < kv_len) & (block >= 0)
    if CAUSAL:
        seen = seen & (key <= position)
    return key, seen


@triton.jit
def _features(ptr, row, row_stride, seen, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Rows of features, 0 where they are not ``seen``."""
    e = tl.arange(0, PADDED)
    at = ptr + row.to(tl.int64)[:, None] * row_stride + e[None, :]
    return tl.load(at, mask=seen[:, None] & (e < WIDTH)[None, :], other=0.0)


@triton.jit
def forward(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, blocks_ptr, q_sb, q_sh, q_sm, k_sb, k_sh, k_sn, v_sb, v_sh, v_sn, o_sb, o_sh,
    o_sm, kv_heads, q_len, kv_len, columns, scale, q_offset, COUNT: tl.constexpr, LISTED: tl.constexpr,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    VALUE_PADDED: tl.constexpr, BLOCK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    LOG2E: tl.constexpr = 1.4426950408889634
    token, b, g, member = _place(tl.program_id(0), q_len, kv_heads, GROUP, BLOCK_M)
    position = token + q_offset
    b, g = b.to(tl.int64), g.to(tl.int64)
    h = g * GROUP + member
    line = (b * kv_heads + g) * q_len + token
    q = _features(q_ptr + b * q_sb + token.to(tl.int64) * q_sm, h, q_sh, member < GROUP, WIDTH, PADDED)
    k_ptr += b * k_sb + g * k_sh
    v_ptr += b * v_sb + g * v_sh
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, VALUE_PADDED], tl.float32)
    count = _listed(blocks_ptr, line, position, columns, COUNT, LISTED, BLOCK, CAUSAL)
    for step in range(count * (BLOCK // BLOCK_N)):
        key, seen = _keys(blocks_ptr, line, step, position, kv_len, columns, COUNT, BLOCK, BLOCK_N, CAUSAL)
        k = _features(k_ptr, key, k_sn, seen, WIDTH, PADDED)
        v = _features(v_ptr, key, v_sn, seen, VALUE_WIDTH, VALUE_PADDED)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2E)
        s = tl.where(seen[None, :], s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(s - finite[:, None])
        kept = tl.exp2(top - finite)
        total = total * kept + tl.sum(p, 1)
        acc = acc * kept[:, None] + tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
        top = higher
    empty = top == float("-inf")
    total = tl.where(empty, 1.0, total)
    acc = acc / total[:, None]
    lse = tl.where(empty, float("-inf"), (top + tl.log2(total)) / LOG2E)
    tl.store(lse_ptr + (b * (kv_heads * GROUP) + h) * q_len + token, lse, mask=member < GROUP)
    e = tl.arange(0, VALUE_PADDED)
    at = out_ptr + b * o_sb + token.to(tl.int64) * o_sm + h[:, None] * o_sh + e[None, :]
    tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=(member < GROUP)[:, None] & (e < VALUE_WIDTH)[None, :])


@triton.jit
def backward(
    q_ptr, k_ptr, v_ptr, out_ptr, do_ptr, lse_ptr, dlse_ptr, delta_ptr, dq_ptr, blocks_ptr, q_sb, q_sh, q_sm, k_sb,
    k_sh, k_sn, v_sb, v_sh, v_sn, o_sb, o_sh, o_sm, do_sb, do_sh, do_sm, dq_sb, dq_sh, dq_sm, kv_heads, q_len, kv_len,
    columns, scale, q_offset, COUNT: tl.constexpr, LISTED: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
    PADDED: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_PADDED: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, HAS_LSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of the queries, and what every row subtracts: ``Σ_d out · grad_out - grad_lse``."""
    LOG2E: tl.constexpr = 1.4426950408889634
    token, b, g, member = _place(tl.program_id(0), q_len, kv_heads, GROUP, BLOCK_M)
    position = token + q_offset
    b, g = b.to(tl.int64), g.to(tl.int64)
    h = g * GROUP + member
    line = (b * kv_heads + g) * q_len + token
    at_row = (b * (kv_heads * GROUP) + h) * q_len + token
    real = member < GROUP
    where = token.to(tl.int64)
    q = _features(q_ptr + b * q_sb + where * q_sm, h, q_sh, real, WIDTH, PADDED)
    out = _features(out_ptr + b * o_sb + where * o_sm, h, o_sh, real, VALUE_WIDTH, VALUE_PADDED)
    do = _features(do_ptr + b * do_sb + where * do_sm, h, do_sh, real, VALUE_WIDTH, VALUE_PADDED)
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    if HAS_LSE:
        delta -= tl.load(dlse_ptr + at_row, mask=real, other=0.0)
    tl.store(delta_ptr + at_row, delta, mask=real)
    lse = tl.load(lse_ptr + at_row, mask=real, other=float("-inf"))
    lse = tl.where(lse == float("-inf"), float("inf"), lse) * LOG2E
    k_ptr += b * k_sb + g * k_sh
    v_ptr += b * v_sb + g * v_sh
    acc = tl.zeros([BLOCK_M, PADDED], tl.float32)
    count = _listed(blocks_ptr, line, position, columns, COUNT, LISTED, BLOCK, CAUSAL)
    for step in range(count * (BLOCK // BLOCK_N)):
        key, seen = _keys(blocks_ptr, line, step, position, kv_len, columns, COUNT, BLOCK, BLOCK_N, CAUSAL)
        k = _features(k_ptr, key, k_sn, seen, WIDTH, PADDED)
        v = _features(v_ptr, key, v_sn, seen, VALUE_WIDTH, VALUE_PADDED)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2E)
        p = tl.where(seen[None, :], tl.exp2(s - lse[:, None]), 0.0)
        dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        ds = (p * (dp - delta[:, None])).to(k.dtype)
        acc += tl.dot(ds, k, input_precision=PRECISION)
    e = tl.arange(0, PADDED)
    at = dq_ptr + b * dq_sb + where * dq_sm + h[:, None] * dq_sh + e[None, :]
    tl.store(at, (acc * scale).to(dq_ptr.dtype.element_ty), mask=real[:, None] & (e < WIDTH)[None, :])
