"""SpMM over bit blocks on tensor cores, portable: used where CUDA C++ cannot be compiled.

A program multiplies one work item (blocks of one window of 8 rows) with a tile of features. The pattern tile is
expanded from the bit masks by shifts; the value of an entry lies at the block's first slot plus the number of lower
set bits. float32 accuracy on TF32 units comes from ``x = hi + lo``, each exact in TF32: ``A·hi + A·lo`` for a 0/1
pattern, ``A_hi·hi + A_hi·lo + A_lo·hi`` for weights (error about 2⁻²¹).

A zero of the pattern times Inf or NaN would reach rows that have no such neighbour: an item whose sums are not finite
is computed again entry by entry.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...adjacency import Adjacency
from ..device import on_device
from .tile import MAX_FEATURES, power_of_two, rows_of, vector

STEP = 4
"""Blocks of a step: 32 gathered rows."""


@triton.jit
def popcount(v):
    """Set bits of non-negative int64."""
    v = v - ((v >> 1) & 0x5555555555555555)
    v = (v & 0x3333333333333333) + ((v >> 2) & 0x3333333333333333)
    v = (v + (v >> 4)) & 0x0F0F0F0F0F0F0F0F
    v = v + (v >> 8)
    v = v + (v >> 16)
    return (v + (v >> 32)) & 0x7F


@triton.jit
def round_tf32(v):
    """The nearest TF32 number (ties away from zero), as float32; NaN stays NaN."""
    bits = (v.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    return tl.where(v == v, bits.to(tl.float32, bitcast=True), v)


@triton.jit
def pattern(values, bits, slot, place, DTYPE: tl.constexpr):
    """Entries of the pattern (or their values) at bit numbers ``place`` of blocks with masks ``bits``."""
    place = place.to(tl.int64)
    present = ((bits >> place) & 1) != 0
    if values is None:
        entries = present.to(DTYPE)
    else:
        below = bits & ((tl.full(place.shape, 1, tl.int64) << place) - 1)
        entries = tl.load(values + slot + popcount(below), mask=present, other=0)
    return entries


@triton.jit
def blocks_spmm_kernel(
    out, partial, items, block_col, block_mask, block_slot, values, row_order, x, stride, width, num_rows,
    VEC: tl.constexpr, SPLIT: tl.constexpr, STEP: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """``SPLIT``: two TF32 terms a float32; ``values``: one a slot, or None for a 0/1 pattern; ``stride`` and ``width``
    are in units of ``VEC``."""
    stride *= VEC
    width *= VEC
    item = items + tl.program_id(0).to(tl.int64) * 4
    window = tl.load(item)
    first = tl.load(item + 1).to(tl.int64)
    stop = tl.load(item + 2).to(tl.int64)
    piece = tl.load(item + 3).to(tl.int64)
    f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    in_row = f < width
    r = tl.arange(0, 8)
    k = tl.arange(0, STEP * 8)
    dtype: tl.constexpr = x.dtype.element_ty
    acc = tl.zeros([8, BLOCK_F], tl.float32)
    for block in range(first, stop, STEP):
        b = block + k // 8
        live = b < stop
        source = tl.load(block_col + (block * 8 + k), mask=live, other=-1)
        bits = tl.load(block_mask + b, mask=live, other=0)
        slot = tl.load(block_slot + b, mask=live, other=0).to(tl.int64)
        a = pattern(values, bits[None, :], slot[None, :], r[:, None] * 8 + (k % 8)[None, :], dtype)
        at = x + source.to(tl.int64)[:, None] * stride + f[None, :]
        v = tl.load(at, mask=(source >= 0)[:, None] & in_row[None, :], other=0)
        if dtype == tl.float32:
            high = round_tf32(v)
            a_high = a if values is None else round_tf32(a)
            if SPLIT:
                acc = tl.dot(a_high, v - high, acc, input_precision="tf32")
                if values is not None:
                    acc = tl.dot(a - a_high, high, acc, input_precision="tf32")
            acc = tl.dot(a_high, high, acc, input_precision="tf32")
        else:
            acc = tl.dot(a, v, acc)
    if tl.min((tl.abs(acc) < float("inf")).to(tl.int32)) == 0:
        acc = tl.zeros([8, BLOCK_F], tl.float32)
        for block in range(first, stop):
            bits = tl.load(block_mask + block)
            slot = tl.load(block_slot + block).to(tl.int64)
            for c in range(8):
                source = tl.load(block_col + block * 8 + c).to(tl.int64)
                if source >= 0:
                    v = tl.load(x + source * stride + f, mask=in_row, other=0).to(tl.float32)
                    present = ((bits >> (r * 8 + c).to(tl.int64)) & 1) != 0
                    w = pattern(values, bits, slot, r * 8 + c, dtype).to(tl.float32)
                    acc += tl.where(present[:, None], w[:, None] * v[None, :], 0.0)
    place = window * 8 + r
    row = place
    if row_order is not None:
        row = tl.load(row_order + place, mask=place < num_rows, other=0)
    to = row.to(tl.int64)[:, None] * width + f[None, :]
    whole = (place < num_rows)[:, None] & in_row[None, :]
    if partial is not None:
        aside = (piece * 8 + r)[:, None] * width + f[None, :]
        tl.store(partial + aside, acc, mask=(r[:, None] >= 0) & in_row[None, :] & (piece >= 0))
        whole = whole & (piece < 0)
    tl.store(out + to, acc.to(out.dtype.element_ty), mask=whole)


@triton.jit
def add_partial_kernel(out, partial, splits, row_order, width, num_rows, BLOCK_F: tl.constexpr):
    """Adds the partial results of one split window, in their order."""
    split = splits + tl.program_id(0).to(tl.int64) * 3
    window = tl.load(split)
    first = tl.load(split + 1).to(tl.int64)
    stop = tl.load(split + 2).to(tl.int64)
    f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    r = tl.arange(0, 8)
    in_row = (r[:, None] >= 0) & (f < width)[None, :]
    acc = tl.zeros([8, BLOCK_F], tl.float32)
    for piece in range(first, stop):
        acc += tl.load(partial + (piece * 8 + r)[:, None] * width + f[None, :], mask=in_row, other=0)
    place = window * 8 + r
    row = place
    if row_order is not None:
        row = tl.load(row_order + place, mask=place < num_rows, other=0)
    to = row.to(tl.int64)[:, None] * width + f[None, :]
    tl.store(out + to, acc.to(out.dtype.element_ty), mask=(place < num_rows)[:, None] & in_row)


def config(width: int) -> tuple[int, int]:
    """``(BLOCK_F, num_warps)`` for rows of ``width`` features."""
    block = min(max(power_of_two(width), 16), MAX_FEATURES)
    return block, max(1, block // 32)


def blocks_spmm(adjacency: Adjacency, x: Tensor, weight: Tensor | None, precision: str, out: Tensor) -> None:
    """Writes the weighted sum of the neighbours' features.

    Args:
        adjacency: with blocks of height 8.
        x: ``[K, ...]``; float32, float16 or bfloat16.
        weight: ``[E]`` in input edge order, rounded to the type of ``x``, or ``None``.
        precision: ``"ieee"`` (float32 accuracy) or ``"tf32"``, for float32.
        out: ``[M, ...]``, contiguous, of any floating type; sums are float32.
    """
    blocks = adjacency.blocks
    assert blocks is not None
    assert blocks.height == 8
    table = rows_of(x)
    width = table.shape[1]
    if out.numel() == 0:
        return
    values = blocks.slot_values(None if weight is None else adjacency.to_entries(weight))
    if values is not None:
        values = values.to(x.dtype).contiguous()
    num_parts = blocks.partial_window.shape[0]
    partial = table.new_empty(num_parts * 8, width, dtype=torch.float32) if num_parts else None
    row_order = blocks.row_order if blocks.row_order.numel() else None
    block, num_warps = config(width)
    vec = vector(width, table)
    tiles = triton.cdiv(width, block)
    with on_device(table):
        blocks_spmm_kernel[blocks.items.shape[0], tiles](
            out, partial, blocks.items, blocks.block_col, blocks.block_mask, blocks.block_slot, values, row_order,
            table, table.stride(0) // vec, width // vec, adjacency.num_rows,
            VEC=vec, SPLIT=precision == "ieee", STEP=STEP, BLOCK_F=block, num_warps=num_warps,
        )  # fmt: skip
        if partial is not None:
            add_partial_kernel[blocks.splits.shape[0], tiles](
                out, partial, blocks.splits, row_order, width, adjacency.num_rows, BLOCK_F=block, num_warps=4
            )
