"""Maximum and minimum over compressed rows, and the entry that attains it.

``out[i, f] = max_{k in row i} w[edge[k]] · x[col[k], f]``; the first of equal entries wins, NaN wins over everything
(as ``torch.amax``), an empty row gives 0 and entry −1. Long rows are cut; a second launch compares their pieces.
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
def csr_extremum_kernel(
    out, out_arg, partial, partial_arg, row, part, begin, end, col, edge, weight, x, x_arg, stride, width, features,
    heads, num_wide, num_items,
    LARGEST: tl.constexpr, HEADED: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, BLOCK_F: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """As ``csr_spmm_kernel``; with ``x_arg`` the rows of ``x`` are partial results and ``x_arg`` says who attained them."""
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
    best = tl.zeros([ROWS, BLOCK_F], ACC)
    arg = tl.full([ROWS, BLOCK_F], -1, tl.int64)
    for trip in range(0, trips, UNROLL):
        for u in tl.static_range(UNROLL):
            ahead = (trip + u) * step
            inside = ahead < count
            mask = inside[:, None] & in_row[None, :]
            entry = (first + ahead).to(tl.int64)
            if x_arg is None:
                source = tl.load(col + entry, mask=inside, other=0).to(tl.int64)
                value = tl.load(x + source[:, None] * stride + f[None, :], mask=mask, other=0)
                at = tl.zeros([ROWS, BLOCK_F], tl.int64) + entry[:, None]
            else:
                value = tl.load(x + entry[:, None] * stride + f[None, :], mask=mask, other=0)
                at = tl.load(x_arg + entry[:, None] * stride + f[None, :], mask=mask, other=-1)
            if weight is not None:
                place = entry
                if edge is not None:
                    place = tl.load(edge + entry, mask=inside, other=0).to(tl.int64)
                if HEADED:
                    w = tl.load(weight + place[:, None] * heads + (f // features)[None, :], mask=mask, other=0)
                    product = value.to(ACC) * w.to(value.dtype).to(ACC)
                else:
                    w = tl.load(weight + place, mask=inside, other=0)
                    product = value.to(ACC) * w.to(value.dtype).to(ACC)[:, None]
                value = product.to(value.dtype)  # ties are ties of what is stored
            message = value.to(ACC)
            better = message > best if LARGEST else message < best
            better = better | ((message != message) & (best == best)) | (arg < 0)
            best = tl.where(better & mask, message, best)
            arg = tl.where(better & mask, at, arg)
    target = tl.load(row + item, mask=live, other=0).to(tl.int64)
    if wide:
        seen = arg >= 0
        lost = tl.max((seen & (best != best)).to(tl.int32), 0)[None, :] > 0
        if LARGEST:
            top = tl.max(tl.where(seen & (best == best), best, float("-inf")), 0)
        else:
            top = tl.min(tl.where(seen & (best == best), best, float("inf")), 0)
        wins = seen & tl.where(lost, best != best, best == top[None, :])
        entry = tl.min(tl.where(wins, arg, 0x7FFFFFFFFFFFFFFF), 0)
        total = tl.where(tl.max((seen & (best != best)).to(tl.int32), 0) > 0, float("nan"), top)
        whole = in_row
        if partial is not None:
            piece = tl.load(part + pid).to(tl.int64)
            whole = in_row & (piece < 0)
            tl.store(partial + piece * width + f, total.to(partial.dtype.element_ty), mask=in_row & (piece >= 0))
            tl.store(partial_arg + piece * width + f, entry, mask=in_row & (piece >= 0))
        to = tl.max(target, 0) * width + f
        tl.store(out + to, total.to(out.dtype.element_ty), mask=whole)
        tl.store(out_arg + to, entry, mask=whole)
    else:
        to = target[:, None] * width + f[None, :]
        mask = live[:, None] & in_row[None, :]
        tl.store(out + to, best.to(out.dtype.element_ty), mask=mask)
        tl.store(out_arg + to, arg, mask=mask)


def csr_extremum(adjacency: Adjacency, x: Tensor, weight: Tensor | None, largest: bool) -> tuple[Tensor, Tensor]:
    """Extremum of the (weighted) neighbours' features.

    Args:
        adjacency: the rows.
        x: ``[K, F]``, or ``[K, H, F]`` where weights have heads; float32, float16, bfloat16 or float64.
        weight: ``[E]`` or ``[E, H]`` in input edge order, or ``None``.
        largest: maximum, else minimum.

    Returns:
        ``[M, ...]`` of ``x.dtype``, and the attaining entry as int64 (−1 in empty rows).
    """
    heads = weight.shape[1] if weight is not None and weight.dim() == 2 else 1
    table = rows_of(x)
    width = table.shape[1]
    shape = (adjacency.num_rows, *x.shape[1:])
    out = table.new_empty(adjacency.num_rows, width)
    arg = table.new_empty(adjacency.num_rows, width, dtype=torch.int64)
    if adjacency.num_edges == 0 or out.numel() == 0:
        return out.zero_().view(shape), arg.fill_(-1).view(shape)
    plan = row_plan(adjacency.rowptr, adjacency.num_edges, split=True)
    edge = adjacency.edge if adjacency.edge.numel() else None
    weight = None if weight is None else weight.contiguous()
    partial = table.new_empty(plan.num_parts, width) if plan.num_parts else None
    partial_arg = arg.new_empty(plan.num_parts, width) if plan.num_parts else None
    rows, block = tile(width, table.dtype)
    options = {
        "LARGEST": largest, "HEADED": heads > 1, "ROWS": rows, "BLOCK_F": block, "UNROLL": UNROLL,
        "ACC": tl.float64 if x.dtype == torch.float64 else tl.float32, "num_warps": NUM_WARPS,
    }  # fmt: skip

    def launch(plan: RowPlan, partial: Tensor | None, partial_arg: Tensor | None, *operands: Tensor | None) -> None:
        grid = (plan.num_programs(rows), triton.cdiv(width, block))
        stride = operands[3].stride(0) if operands[3] is not None else 0
        csr_extremum_kernel[grid](
            out, arg, partial, partial_arg, plan.row, plan.part, plan.begin, plan.end, *operands, stride, width,
            width // heads, heads, plan.num_wide, plan.num_items, **options,
        )  # fmt: skip

    with on_device(table):
        launch(plan, partial, partial_arg, adjacency.col, edge, weight, table, None)
        if plan.parts is not None:
            launch(plan.parts, None, None, None, None, None, partial, partial_arg)
    return out.view(shape), arg.view(shape)
