"""Gradients of keys and values of attention to selected blocks, by the lists of queries that selected a block.

A program has a segment of such a list and keys of the block; its rows are queries times heads of the group, whatever
the group is. Segments are added in their order afterwards, so equal inputs give equal bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .selected_queries_kernel import _features


@triton.jit
def segment(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, queries_ptr, begin_ptr, first_ptr, owner_ptr, q_sb,
    q_sh, q_sm, k_sb, k_sh, k_sn, v_sb, v_sh, v_sn, do_sb, do_sh, do_sm, kv_heads, q_len, kv_len, columns, total,
    scale, q_offset, most, GROUP: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    VALUE_PADDED: tl.constexpr, BLOCK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums of one segment, ``[segments, BLOCK, features]`` in float32."""
    LOG2E: tl.constexpr = 1.4426950408889634
    number = tl.program_id(0).to(tl.int64)
    owner = tl.load(owner_ptr + number)
    if owner < total:
        start = tl.load(begin_ptr + owner) + (number - tl.load(first_ptr + owner)) * most
        rows = (tl.minimum(tl.load(begin_ptr + owner + 1) - start, most) * GROUP).to(tl.int32)
        plane, column = owner // columns, owner % columns
        b, g = plane // kv_heads, plane % kv_heads
        inside = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        key = column.to(tl.int32) * BLOCK + inside
        k = _features(k_ptr + b * k_sb + g * k_sh, key, k_sn, key < kv_len, WIDTH, PADDED)
        v = _features(v_ptr + b * v_sb + g * v_sh, key, v_sn, key < kv_len, VALUE_WIDTH, VALUE_PADDED)
        e, f = tl.arange(0, PADDED), tl.arange(0, VALUE_PADDED)
        dk = tl.zeros([BLOCK_N, PADDED], tl.float32)
        dv = tl.zeros([BLOCK_N, VALUE_PADDED], tl.float32)
        for base in range(0, rows, BLOCK_M):
            row = base + tl.arange(0, BLOCK_M)
            real = row < rows
            query = tl.load(queries_ptr + start + row // GROUP, mask=real, other=0)
            h = g * GROUP + row % GROUP
            at = query.to(tl.int64)
            q_at = q_ptr + b * q_sb + (h * q_sh + at * q_sm)[:, None] + e[None, :]
            q = tl.load(q_at, mask=real[:, None] & (e < WIDTH)[None, :], other=0.0)
            do_at = do_ptr + b * do_sb + (h * do_sh + at * do_sm)[:, None] + f[None, :]
            do = tl.load(do_at, mask=real[:, None] & (f < VALUE_WIDTH)[None, :], other=0.0)
            at_row = (b * (kv_heads * GROUP) + h) * q_len + at
            lse = tl.load(lse_ptr + at_row, mask=real, other=float("-inf"))
            lse = tl.where(lse == float("-inf"), float("inf"), lse) * LOG2E
            delta = tl.load(delta_ptr + at_row, mask=real, other=0.0)
            seen = real[:, None] & (key < kv_len)[None, :]
            if CAUSAL:
                seen = seen & (key[None, :] <= (query + q_offset)[:, None])
            s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2E)
            p = tl.where(seen, tl.exp2(s - lse[:, None]), 0.0)
            dv += tl.dot(tl.trans(p).to(do.dtype), do, input_precision=PRECISION)
            dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
            ds = tl.where(seen, p * (dp - delta[:, None]), 0.0)
            dk += tl.dot(tl.trans(ds).to(q.dtype), q, input_precision=PRECISION)
        line = number * BLOCK + inside
        tl.store(dk_ptr + line[:, None] * WIDTH + e[None, :], dk * scale, mask=(e < WIDTH)[None, :])
        tl.store(dv_ptr + line[:, None] * VALUE_WIDTH + f[None, :], dv, mask=(f < VALUE_WIDTH)[None, :])


@triton.jit
def add_segments(
    sums_ptr, out_ptr, first_ptr, columns, kv_len, WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """The segments of one block, in their order; ``out`` is contiguous ``[planes, kv_len, WIDTH]``."""
    owner = tl.program_id(0).to(tl.int64)
    inside = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    e = tl.arange(0, PADDED)[None, :]
    total = tl.zeros([ROWS, PADDED], tl.float32)
    for number in range(tl.load(first_ptr + owner), tl.load(first_ptr + owner + 1)):
        at = (number * BLOCK + inside)[:, None] * WIDTH + e
        total += tl.load(sums_ptr + at, mask=e < WIDTH, other=0.0)
    key = owner % columns * BLOCK + inside
    at = (owner // columns * kv_len + key)[:, None] * WIDTH + e
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=(key < kv_len)[:, None] & (e < WIDTH))
