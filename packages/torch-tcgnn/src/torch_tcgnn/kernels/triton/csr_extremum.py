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
from ...row_plan import TRIP
from ..device import on_device
from .lanes import SIZES, Lists, edge_of, lanes, lists, num_programs, sums_of_pieces
from .plans import plan_of
from .tile import NUM_WARPS, rows_of, tile, vector


@triton.jit(do_not_specialize=SIZES)
def csr_extremum_kernel(
    out, out_arg, partial, partial_arg, pieces, wide, short, num_long, num_pieces, num_short, col, edge, weight, x,
    x_arg, stride, width, features, heads,
    VEC: tl.constexpr, LARGEST: tl.constexpr, HEADED: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_F: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """As ``csr_spmm_kernel``; with ``x_arg``, ``x`` holds partial results and ``x_arg`` who attained them."""
    stride *= VEC
    width *= VEC
    long, row, live, first, count, step, trips = lanes(pieces, wide, short, num_long, num_pieces, num_short, None, ROWS)
    f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    in_row = f < width
    counts = count[:, None]
    best = tl.zeros([ROWS, BLOCK_F], ACC)
    arg = tl.full([ROWS, BLOCK_F], -1, tl.int64)
    for trip in range(0, trips, UNROLL):
        sources, values = (), ()
        for u in tl.static_range(UNROLL):
            entry = (first + (trip + u) * step).to(tl.int64)
            sources += (edge_of(col, entry, (trip + u) * step < count),)
        for u in tl.static_range(UNROLL):
            mask = ((trip + u) * step < counts) & in_row[None, :]
            values += (tl.load(x + sources[u][:, None] * stride + f[None, :], mask=mask, other=0),)
        for u in tl.static_range(UNROLL):
            inside = (trip + u) * step < count
            mask = ((trip + u) * step < counts) & in_row[None, :]
            entry = (first + (trip + u) * step).to(tl.int64)
            message = values[u].to(ACC)
            if weight is not None:
                place = edge_of(edge, entry, inside)
                if HEADED:
                    w = tl.load(weight + place[:, None] * heads + (f // features)[None, :], mask=mask, other=0)
                else:
                    w = tl.load(weight + place, mask=inside, other=0)[:, None]
                # rounded to the type of x: ties are ties of what is stored
                message = (message * w.to(x.dtype.element_ty).to(ACC)).to(x.dtype.element_ty).to(ACC)
            if x_arg is None:
                at = tl.zeros([ROWS, BLOCK_F], tl.int64) + entry[:, None]
            else:
                at = tl.load(x_arg + entry[:, None] * stride + f[None, :], mask=mask, other=-1)
            better = message > best if LARGEST else message < best
            better = better | ((message != message) & (best == best)) | (arg < 0)
            best = tl.where(better & mask, message, best)
            arg = tl.where(better & mask, at, arg)
    if long:
        seen = arg >= 0
        isnan = best != best
        ordered = tl.where(seen & (best == best), best, float("-inf") if LARGEST else float("inf"))
        top = tl.max(ordered, 0) if LARGEST else tl.min(ordered, 0)
        poisoned = tl.max((seen & isnan).to(tl.int32), 0) > 0
        wins = seen & tl.where(poisoned[None, :], isnan, best == top[None, :])
        winner = tl.min(tl.where(wins, arg, 0x7FFFFFFFFFFFFFFF), 0)
        top = tl.where(poisoned, float("nan"), top)
        piece = tl.program_id(0)
        if partial is not None:
            aside = in_row & (piece < num_pieces)
            at_piece = piece.to(tl.int64) * width + f
            tl.store(partial + at_piece, top.to(partial.dtype.element_ty), mask=aside)
            tl.store(partial_arg + at_piece, winner, mask=aside)
        whole = in_row & (piece >= num_pieces)
        at_row = tl.max(row, 0) * width + f
        tl.store(out + at_row, top.to(out.dtype.element_ty), mask=whole)
        tl.store(out_arg + at_row, winner, mask=whole)
    else:
        at_rows = row[:, None] * width + f[None, :]
        stored = live[:, None] & in_row[None, :]
        tl.store(out + at_rows, best.to(out.dtype.element_ty), mask=stored)
        tl.store(out_arg + at_rows, arg, mask=stored)


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
    plan = plan_of(adjacency)
    num_pieces = plan.pieces.shape[0]
    edge = adjacency.edge if adjacency.edge.numel() else None
    weight = None if weight is None else weight.contiguous()
    partial = table.new_empty(num_pieces, width) if num_pieces else None
    partial_arg = arg.new_empty(num_pieces, width) if num_pieces else None
    vec = vector(width, table)
    rows, block = tile(width, vec)
    options = {
        "VEC": vec, "LARGEST": largest, "HEADED": heads > 1, "ROWS": rows, "BLOCK_F": block, "UNROLL": TRIP,
        "ACC": tl.float64 if x.dtype == torch.float64 else tl.float32, "num_warps": NUM_WARPS,
    }  # fmt: skip

    def launch(items: Lists, partial: Tensor | None, partial_arg: Tensor | None, *operands: Tensor | None) -> None:
        grid = (num_programs(items, rows), triton.cdiv(width, block))
        stride = operands[3].stride(0) if operands[3] is not None else 0
        csr_extremum_kernel[grid](
            out, arg, partial, partial_arg, *items, *operands, stride // vec, width // vec, width // heads, heads,
            **options,
        )  # fmt: skip

    with on_device(table):
        launch(lists(plan), partial, partial_arg, adjacency.col, edge, weight, table, None)
        if partial is not None:
            launch(sums_of_pieces(plan), None, None, None, None, None, partial, partial_arg)
    return out.view(shape), arg.view(shape)
