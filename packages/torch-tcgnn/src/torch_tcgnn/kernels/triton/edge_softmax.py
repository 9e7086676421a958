"""Softmax over the entries of each row: ``p_k = exp(s_k − max) / Σ exp(s − max)``.

Two passes: the running maximum and sum (online softmax, Milakov & Gimelshein 2018), then the shares. Long rows are
looped by one program. Reads and writes in input edge order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...adjacency import Adjacency
from .row_plan import UNROLL, row_plan
from .tile import NUM_WARPS, THREADS, on_device, power_of_two

MAX_HEADS = 16
"""Heads of one program."""


@triton.jit(do_not_specialize=["num_wide", "num_items"])
def edge_softmax_kernel(
    out, logits, begin, end, edge, heads, num_wide, num_items,
    ACC: tl.constexpr, ROWS: tl.constexpr, BLOCK_H: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    lane = tl.arange(0, ROWS)
    wide = pid < num_wide
    item = tl.where(wide, pid, num_wide + (pid - num_wide) * ROWS + lane)
    live = item < num_items
    skip = tl.where(wide, lane, 0)
    step = tl.where(wide, ROWS, 1)
    first = tl.load(begin + item, mask=live, other=0) + skip
    count = tl.load(end + item, mask=live, other=0) - first
    trips = (tl.max(count, 0) + step - 1) // step
    top = tl.full([ROWS, BLOCK_H], float("-inf"), ACC)
    total = tl.zeros([ROWS, BLOCK_H], ACC)
    for trip in range(0, trips, UNROLL):
        for u in tl.static_range(UNROLL):
            ahead = (trip + u) * step
            inside = ahead < count
            place = (first + ahead).to(tl.int64)
            if edge is not None:
                place = tl.load(edge + place, mask=inside, other=0).to(tl.int64)
            at = place[:, None] * heads + head[None, :]
            mask = inside[:, None] & (head < heads)[None, :]
            logit = tl.load(logits + at, mask=mask, other=float("-inf")).to(ACC)
            new_top = tl.where(logit > top, logit, top)
            total = total * tl.where(top == new_top, 1.0, tl.exp(top - new_top))
            total += tl.where(logit == float("-inf"), 0.0, tl.exp(logit - new_top))
            top = new_top
    if wide:
        row_top = tl.max(top, 0)[None, :]
        row_total = tl.sum(tl.where(top == float("-inf"), total, total * tl.exp(top - row_top)), 0)
        top = tl.broadcast_to(row_top, (ROWS, BLOCK_H))
        total = tl.broadcast_to(row_total[None, :], (ROWS, BLOCK_H))
    for trip in range(0, trips, UNROLL):
        for u in tl.static_range(UNROLL):
            ahead = (trip + u) * step
            inside = ahead < count
            place = (first + ahead).to(tl.int64)
            if edge is not None:
                place = tl.load(edge + place, mask=inside, other=0).to(tl.int64)
            at = place[:, None] * heads + head[None, :]
            mask = inside[:, None] & (head < heads)[None, :]
            share = tl.exp(tl.load(logits + at, mask=mask, other=0).to(ACC) - top) / total
            tl.store(out + at, share.to(out.dtype.element_ty), mask=mask)


def edge_softmax(adjacency: Adjacency, logits: Tensor) -> Tensor:
    """Normalise edge logits over the edges that enter each row.

    Args:
        adjacency: the rows.
        logits: ``[E]`` or ``[E, H]`` in input edge order; float32, float16, bfloat16 or float64.

    Returns:
        Same shape, dtype and order.
    """
    logits = logits.contiguous()
    out = torch.empty_like(logits)
    if out.numel() == 0:
        return out
    heads = logits.shape[1] if logits.dim() == 2 else 1
    block = min(power_of_two(heads), MAX_HEADS)
    rows = THREADS // block
    plan = row_plan(adjacency.rowptr, adjacency.num_edges, split=False)
    with on_device(logits):
        edge_softmax_kernel[plan.num_programs(rows), triton.cdiv(heads, block)](
            out, logits, plan.begin, plan.end, adjacency.edge if adjacency.edge.numel() else None, heads,
            plan.num_wide, plan.num_items, ACC=tl.float64 if logits.dtype == torch.float64 else tl.float32,
            ROWS=rows, BLOCK_H=block, UNROLL=UNROLL, num_warps=NUM_WARPS,
        )  # fmt: skip
    return out
