"""Softmax over the entries of each row: ``p_k = exp(s_k − max) / Σ exp(s − max)``.

Two passes: the running maximum and sum (online softmax, Milakov & Gimelshein 2018), then the shares; 0 where all of a
row are −inf. Long rows are looped by one program. Reads and writes in input edge order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...adjacency import Adjacency
from ...row_plan import TRIP
from ..device import on_device
from .lanes import SIZES, edge_of, lanes, num_programs, whole_rows
from .plans import plan_of
from .tile import NUM_WARPS, THREADS, power_of_two

MAX_HEADS = 16
"""Heads of one program."""


@triton.jit(do_not_specialize=SIZES)
def edge_softmax_kernel(
    out, logits, pieces, wide, short, num_long, num_pieces, num_short, rowptr, edge, heads,
    ACC: tl.constexpr, ROWS: tl.constexpr, BLOCK_H: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    long, _, _, first, count, step, trips = lanes(pieces, wide, short, num_long, num_pieces, num_short, rowptr, ROWS)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    in_row = head < heads
    counts = count[:, None]
    top = tl.full([ROWS, BLOCK_H], float("-inf"), ACC)
    total = tl.zeros([ROWS, BLOCK_H], ACC)
    for trip in range(0, trips, UNROLL):
        scores = ()
        for u in tl.static_range(UNROLL):
            inside = (trip + u) * step < count
            place = edge_of(edge, (first + (trip + u) * step).to(tl.int64), inside)
            mask = ((trip + u) * step < counts) & in_row[None, :]
            at = place[:, None] * heads + head[None, :]
            scores += (tl.load(logits + at, mask=mask, other=float("-inf")).to(ACC),)
        for u in tl.static_range(UNROLL):
            score = scores[u]
            new_top = tl.where(score > top, score, top)
            total = total * tl.where(top == new_top, 1.0, tl.exp(top - new_top))
            total += tl.where(score == float("-inf"), 0.0, tl.exp(score - new_top))
            top = new_top
    if long:
        row_top = tl.max(top, 0)[None, :]
        row_total = tl.sum(tl.where(top == float("-inf"), total, total * tl.exp(top - row_top)), 0)
        top = tl.broadcast_to(row_top, (ROWS, BLOCK_H))
        total = tl.broadcast_to(row_total[None, :], (ROWS, BLOCK_H))
    top = tl.where(top == float("-inf"), 0.0, top)  # all logits −inf: all shares 0
    total = tl.where(total == 0, 1.0, total)
    for trip in range(0, trips, UNROLL):
        places, scores = (), ()
        for u in tl.static_range(UNROLL):
            inside = (trip + u) * step < count
            place = edge_of(edge, (first + (trip + u) * step).to(tl.int64), inside)
            places += (place[:, None] * heads + head[None, :],)
            mask = ((trip + u) * step < counts) & in_row[None, :]
            scores += (tl.load(logits + places[u], mask=mask, other=0).to(ACC),)
        for u in tl.static_range(UNROLL):
            mask = ((trip + u) * step < counts) & in_row[None, :]
            share = tl.exp(scores[u] - top) / total
            tl.store(out + places[u], share.to(out.dtype.element_ty), mask=mask)


def edge_softmax(adjacency: Adjacency, logits: Tensor) -> Tensor:
    """Normalise edge logits over the edges that enter each row.

    Args:
        adjacency: the rows.
        logits: ``[E]`` or ``[E, H]`` in input edge order; float32, float16, bfloat16 or float64.

    Returns:
        Same shape, dtype and order; contiguous.
    """
    logits = logits.contiguous()
    out = torch.empty_like(logits)
    if out.numel() == 0:
        return out
    heads = logits.shape[1] if logits.dim() == 2 else 1
    block = min(power_of_two(heads), MAX_HEADS)
    rows = THREADS // block
    items = whole_rows(plan_of(adjacency))
    with on_device(logits):
        edge_softmax_kernel[num_programs(items, rows), triton.cdiv(heads, block)](
            out, logits, *items, adjacency.rowptr, adjacency.edge if adjacency.edge.numel() else None, heads,
            ACC=tl.float64 if logits.dtype == torch.float64 else tl.float32, ROWS=rows, BLOCK_H=block, UNROLL=TRIP,
            num_warps=NUM_WARPS,
        )  # fmt: skip
    return out
