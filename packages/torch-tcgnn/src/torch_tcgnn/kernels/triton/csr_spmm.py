"""SpMM and segment sums over compressed rows: ``out[i, f] = Σ_{k in row i} w[edge[k]] · x[col[k], f]``.

Accumulates in float32 (float64 for float64). The longest rows are cut; their partial sums are added in
a fixed order by a second launch of the same kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...adjacency import Adjacency
from ...row_plan import TRIP, RowPlan
from ..device import on_device
from .lanes import SIZES, Lists, edge_of, lanes, lists, num_programs, sums_of_pieces
from .plans import plan_of
from .tile import NUM_WARPS, rows_of, tile, vector


@triton.jit(do_not_specialize=SIZES)
def csr_spmm_kernel(
    out, partial, pieces, wide, short, num_long, num_pieces, num_short, col, edge, weight, x, stride, width, features,
    heads,
    VEC: tl.constexpr, HEADED: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, BLOCK_F: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """``x``: rows of ``width = heads · features``, in units of ``VEC`` as ``stride``; no ``col``: entry k is row k."""
    stride *= VEC
    width *= VEC
    long, row, live, first, count, step, trips = lanes(pieces, wide, short, num_long, num_pieces, num_short, None, ROWS)
    f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    in_row = f < width
    counts = count[:, None]
    acc = tl.zeros([ROWS, BLOCK_F], ACC)
    for trip in range(0, trips, UNROLL):
        sources, edges, values = (), (), ()
        for u in tl.static_range(UNROLL):  # all loads of one kind are issued before the first is waited for
            inside = (trip + u) * step < count
            entry = (first + (trip + u) * step).to(tl.int64)
            sources += (edge_of(col, entry, inside),)
            edges += (edge_of(edge, entry, inside),)
        for u in tl.static_range(UNROLL):
            mask = ((trip + u) * step < counts) & in_row[None, :]
            values += (tl.load(x + sources[u][:, None] * stride + f[None, :], mask=mask, other=0),)
        for u in tl.static_range(UNROLL):
            value = values[u].to(ACC)
            if HEADED:
                at = edges[u][:, None] * heads + (f // features)[None, :]
                mask = ((trip + u) * step < counts) & in_row[None, :]
                value *= tl.load(weight + at, mask=mask, other=0).to(ACC)
            elif weight is not None:
                inside = (trip + u) * step < count
                value *= tl.load(weight + edges[u], mask=inside, other=0).to(ACC)[:, None]
            acc += value
    if long:
        total = tl.sum(acc, 0)
        piece = tl.program_id(0)
        if partial is not None:
            tl.store(partial + piece.to(tl.int64) * width + f, total, mask=in_row & (piece < num_pieces))
        at = tl.max(row, 0) * width + f
        tl.store(out + at, total.to(out.dtype.element_ty), mask=in_row & (piece >= num_pieces))
    else:
        at_rows = row[:, None] * width + f[None, :]
        tl.store(out + at_rows, acc.to(out.dtype.element_ty), mask=live[:, None] & in_row[None, :])


def csr_spmm(adjacency: Adjacency, x: Tensor, weight: Tensor | None, out: Tensor, plan: RowPlan | None = None) -> None:
    """Writes the weighted sum of the neighbours' features.

    Args:
        adjacency: the rows.
        x: ``[K, F]``, or ``[K, H, F]`` where weights have heads; float32, float16, bfloat16 or float64.
        weight: ``[E]`` or ``[E, H]`` in input edge order, or ``None``.
        out: ``[M, F]`` or ``[M, H, F]``, contiguous, of any floating type.
        plan: the rows to write; default: all.
    """
    edge = adjacency.edge if adjacency.edge.numel() else None
    _sum_rows(plan or plan_of(adjacency), adjacency.col, edge, x, weight, out)


def segment_sum(adjacency: Adjacency, values: Tensor, out: Tensor) -> None:
    """Writes ``out`` ``[M, ...]``: sums of ``[E, ...]`` values, given in input edge order, over each row's entries."""
    column = adjacency.edge if adjacency.edge.numel() else None
    _sum_rows(plan_of(adjacency), column, None, values, None, out)


def _sum_rows(
    plan: RowPlan, col: Tensor | None, edge: Tensor | None, x: Tensor, weight: Tensor | None, out: Tensor
) -> None:
    """``x`` and ``out`` hold as many features a row, in any number of dimensions."""
    heads = weight.shape[1] if weight is not None and weight.dim() == 2 else 1
    table = rows_of(x)
    width = table.shape[1]
    if out.numel() == 0:
        return
    num_pieces = plan.pieces.shape[0]
    weight = None if weight is None else weight.contiguous()
    accumulator = torch.float64 if x.dtype == torch.float64 else torch.float32
    partial = table.new_empty(num_pieces, width, dtype=accumulator) if num_pieces else None
    with on_device(table):
        _launch(out, partial, lists(plan), col, edge, weight, table, heads)
        if partial is not None:
            _launch(out, None, sums_of_pieces(plan), None, None, None, partial, 1)


def _launch(
    out: Tensor, partial: Tensor | None, items: Lists, col: Tensor | None, edge: Tensor | None, weight: Tensor | None,
    table: Tensor, heads: int,
) -> None:  # fmt: skip
    width = table.shape[1]
    vec = vector(width, table)
    rows, block = tile(width, vec)
    grid = (num_programs(items, rows), triton.cdiv(width, block))
    csr_spmm_kernel[grid](
        out, partial, *items, col, edge, weight, table, table.stride(0) // vec, width // vec, width // heads, heads,
        VEC=vec, HEADED=heads > 1, ACC=tl.float64 if table.dtype == torch.float64 else tl.float32, ROWS=rows,
        BLOCK_F=block, UNROLL=TRIP, num_warps=NUM_WARPS,
    )  # fmt: skip
