"""SpMM and segment sums over compressed rows: ``out[i, f] = Σ_{k in row i} w[edge[k]] · x[col[k], f]``.

Accumulates in float32 (float64 for float64). Rows of more than 1,024 entries are cut; their partial sums are added in
a fixed order by a second launch of the same kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...adjacency import Adjacency
from .row_plan import UNROLL, RowPlan, row_plan
from .tile import NUM_WARPS, on_device, rows_of, tile


@triton.jit(do_not_specialize=["num_wide", "num_items"])
def csr_spmm_kernel(
    out, partial, row, part, begin, end, col, edge, weight, x, stride, width, features, heads, num_wide, num_items,
    HEADED: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, BLOCK_F: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """``x``: rows of ``width = heads · features`` at ``stride``; ``weight``: ``[E, heads]`` or None; ``col`` None: entry k."""
    pid = tl.program_id(0)
    f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    lane = tl.arange(0, ROWS)
    in_row = f < width
    wide = pid < num_wide
    item = tl.where(wide, pid, num_wide + (pid - num_wide) * ROWS + lane)
    live = item < num_items
    skip = tl.where(wide, lane, 0)
    step = tl.where(wide, ROWS, 1)
    first = tl.load(begin + item, mask=live, other=0) + skip
    count = tl.load(end + item, mask=live, other=0) - first
    trips = (tl.max(count, 0) + step - 1) // step
    acc = tl.zeros([ROWS, BLOCK_F], ACC)
    for trip in range(0, trips, UNROLL):
        for u in tl.static_range(UNROLL):
            ahead = (trip + u) * step
            inside = ahead < count
            entry = (first + ahead).to(tl.int64)
            source = entry
            if col is not None:
                source = tl.load(col + entry, mask=inside, other=0).to(tl.int64)
            value = tl.load(x + source[:, None] * stride + f[None, :], mask=inside[:, None] & in_row[None, :], other=0)
            value = value.to(ACC)
            if weight is not None:
                if edge is not None:
                    entry = tl.load(edge + entry, mask=inside, other=0).to(tl.int64)
                if HEADED:
                    at = entry[:, None] * heads + (f // features)[None, :]
                    value *= tl.load(weight + at, mask=inside[:, None] & in_row[None, :], other=0).to(ACC)
                else:
                    value *= tl.load(weight + entry, mask=inside, other=0).to(ACC)[:, None]
            acc += value
    target = tl.load(row + item, mask=live, other=0).to(tl.int64)
    if wide:
        total = tl.sum(acc, 0)
        whole = in_row
        if partial is not None:
            piece = tl.load(part + pid).to(tl.int64)
            whole = in_row & (piece < 0)
            tl.store(partial + piece * width + f, total, mask=in_row & (piece >= 0))
        tl.store(out + tl.max(target, 0) * width + f, total.to(out.dtype.element_ty), mask=whole)
    else:
        at = target[:, None] * width + f[None, :]
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=live[:, None] & in_row[None, :])


def csr_spmm(adjacency: Adjacency, x: Tensor, weight: Tensor | None) -> Tensor:
    """Weighted sum of the neighbours' features.

    Args:
        adjacency: the rows.
        x: ``[K, F]``, or ``[K, H, F]`` where weights have heads; float32, float16, bfloat16 or float64.
        weight: ``[E]`` or ``[E, H]`` in input edge order, or ``None``.

    Returns:
        ``[M, F]`` or ``[M, H, F]`` of ``x.dtype``.
    """
    edge = adjacency.edge if adjacency.edge.numel() else None
    out = _sum_rows(adjacency, adjacency.col, edge, x, weight)
    return out.view(adjacency.num_rows, *x.shape[1:])


def segment_sum(adjacency: Adjacency, values: Tensor) -> Tensor:
    """``[M, ...]``: sums of ``[E, ...]`` values, given in input edge order, over the entries of each row."""
    column = adjacency.edge if adjacency.edge.numel() else None
    return _sum_rows(adjacency, column, None, values, None).view(adjacency.num_rows, *values.shape[1:])


def _sum_rows(adjacency: Adjacency, col: Tensor | None, edge: Tensor | None, x: Tensor, weight: Tensor | None) -> Tensor:
    """``[M, C]`` for ``x`` of ``C`` features a row in any number of dimensions."""
    heads = weight.shape[1] if weight is not None and weight.dim() == 2 else 1
    table = rows_of(x)
    width = table.shape[1]
    out = table.new_empty(adjacency.num_rows, width)
    if adjacency.num_edges == 0 or out.numel() == 0:
        return out.zero_()
    plan = row_plan(adjacency.rowptr, adjacency.num_edges, split=True)
    weight = None if weight is None else weight.contiguous()
    accumulator = torch.float64 if x.dtype == torch.float64 else torch.float32
    partial = table.new_empty(plan.num_parts, width, dtype=accumulator) if plan.num_parts else None
    with on_device(table):
        _launch(out, partial, plan, col, edge, weight, table, heads)
        if plan.parts is not None and partial is not None:
            _launch(out, None, plan.parts, None, None, None, partial, 1)
    return out


def _launch(
    out: Tensor, partial: Tensor | None, plan: RowPlan, col: Tensor | None, edge: Tensor | None, weight: Tensor | None,
    table: Tensor, heads: int,
) -> None:  # fmt: skip
    width = table.shape[1]
    rows, block = tile(width, table.dtype)
    grid = (plan.num_programs(rows), triton.cdiv(width, block))
    csr_spmm_kernel[grid](
        out, partial, plan.row, plan.part, plan.begin, plan.end, col, edge, weight, table, table.stride(0), width,
        width // heads, heads, plan.num_wide, plan.num_items, HEADED=heads > 1,
        ACC=tl.float64 if table.dtype == torch.float64 else tl.float32, ROWS=rows, BLOCK_F=block, UNROLL=UNROLL,
        num_warps=NUM_WARPS,
    )  # fmt: skip
