"""SDDMM over compressed rows: ``out[edge[k]] = <a[i], b[col[k]]>`` for every entry ``k`` of row ``i``.

The target operand stays in registers while the row's sources are gathered. Accumulates in float32 (float64 for
float64); results go straight to input edge order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...adjacency import Adjacency
from .row_plan import UNROLL, row_plan
from .tile import NUM_WARPS, on_device, rows_of, tile


@triton.jit(do_not_specialize=["num_wide", "num_items"])
def csr_sddmm_kernel(
    out, row, begin, end, col, edge, a, b, stride_a, stride_b, features, heads, num_wide, num_items,
    WHOLE: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, BLOCK_F: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """``WHOLE``: ``features`` fit one tile, so the row of ``a`` is read once; else it is read again, from cache."""
    pid = tl.program_id(0)
    head = tl.program_id(1)
    lane = tl.arange(0, ROWS)
    f = tl.arange(0, BLOCK_F)
    in_row = f < features
    wide = pid < num_wide
    item = tl.where(wide, pid, num_wide + (pid - num_wide) * ROWS + lane)
    live = item < num_items
    skip = tl.where(wide, lane, 0)
    step = tl.where(wide, ROWS, 1)
    first = tl.load(begin + item, mask=live, other=0) + skip
    count = tl.load(end + item, mask=live, other=0) - first
    trips = (tl.max(count, 0) + step - 1) // step
    target = tl.load(row + item, mask=live, other=0).to(tl.int64)
    left_at = a + (target[:, None] * stride_a + head * features + f[None, :])
    if WHOLE:
        left = tl.load(left_at, mask=live[:, None] & in_row[None, :], other=0).to(ACC)
    for trip in range(0, trips, UNROLL):
        for u in tl.static_range(UNROLL):
            ahead = (trip + u) * step
            inside = ahead < count
            entry = (first + ahead).to(tl.int64)
            source = tl.load(col + entry, mask=inside, other=0).to(tl.int64)
            right_at = b + (source[:, None] * stride_b + head * features + f[None, :])
            if WHOLE:
                product = left * tl.load(right_at, mask=inside[:, None] & in_row[None, :], other=0).to(ACC)
            else:
                product = tl.zeros([ROWS, BLOCK_F], ACC)
                for start in range(0, features, BLOCK_F):
                    mask = inside[:, None] & (start + f < features)[None, :]
                    left = tl.load(left_at + start, mask=mask, other=0).to(ACC)
                    product += left * tl.load(right_at + start, mask=mask, other=0).to(ACC)
            if edge is not None:
                entry = tl.load(edge + entry, mask=inside, other=0).to(tl.int64)
            tl.store(out + entry * heads + head, tl.sum(product, 1).to(out.dtype.element_ty), mask=inside)


def csr_sddmm(adjacency: Adjacency, a: Tensor, b: Tensor) -> Tensor:
    """Products of target and source rows at the entries of the pattern.

    Args:
        adjacency: the rows.
        a: ``[M, D]`` or ``[M, H, D]`` target operand; float32, float16, bfloat16 or float64.
        b: ``[K, D]`` or ``[K, H, D]`` source operand.

    Returns:
        ``[E]`` or ``[E, H]`` of ``a.dtype`` in input edge order.
    """
    heads = a.shape[1] if a.dim() == 3 else 1
    features = a.shape[-1]
    out = a.new_empty(adjacency.num_edges, *a.shape[1:-1])
    if out.numel() == 0 or features == 0:
        return out.zero_()
    left, right = rows_of(a), rows_of(b)
    plan = row_plan(adjacency.rowptr, adjacency.num_edges, split=True)
    rows, block = tile(features, a.dtype)
    with on_device(left):
        csr_sddmm_kernel[plan.num_programs(rows), heads](
            out, plan.row, plan.begin, plan.end, adjacency.col, adjacency.edge if adjacency.edge.numel() else None,
            left, right, left.stride(0), right.stride(0), features, heads, plan.num_wide, plan.num_items,
            WHOLE=features <= block, ACC=tl.float64 if a.dtype == torch.float64 else tl.float32,
            ROWS=rows, BLOCK_F=block, UNROLL=UNROLL, num_warps=NUM_WARPS,
        )  # fmt: skip
    return out
