"""Row-wise maximum and minimum over neighbours on the CPU, in bounded memory."""

from __future__ import annotations

import torch
from torch import Tensor

from ...adjacency import Adjacency

CHUNK_ELEMENTS = 1 << 23
"""Gathered elements held at once (32 MiB of float32)."""


def spmm_extremum(adjacency: Adjacency, x: Tensor, weight: Tensor | None, largest: bool) -> tuple[Tensor, Tensor]:
    """Extremum of ``weight · x`` over each row's entries, and the entry that attained it (first of equals; −1: none).

    ``x`` is ``[K, F]`` (weights ``[E]``) or ``[K, H, F]`` (weights ``[E, H]``).
    """
    values = None if weight is None else adjacency.to_entries(weight.detach())
    out = x.new_zeros(adjacency.num_rows, *x.shape[1:])
    arg = torch.full(out.shape, -1, dtype=torch.int64)
    for first, last in row_chunks(adjacency.rowptr, CHUNK_ELEMENTS // max(x[:1].numel(), 1)):
        begin, end = int(adjacency.rowptr[first]), int(adjacency.rowptr[last])
        if begin == end:
            continue
        message = x.detach().index_select(0, adjacency.col[begin:end])
        if values is not None:
            message = message * values[begin:end].unsqueeze(-1).to(x.dtype)
        row = torch.arange(last - first).repeat_interleave(adjacency.rowptr[first : last + 1].long().diff())
        index = row.view(-1, *[1] * (x.dim() - 1)).expand_as(message)
        best = message.new_zeros(last - first, *x.shape[1:])
        best = best.scatter_reduce(0, index, message, "amax" if largest else "amin", include_self=False)
        wins = (message == best[row]) | message.isnan()
        entry = torch.arange(begin, end).view(-1, *[1] * (x.dim() - 1)).expand_as(message)
        none = torch.iinfo(torch.int64).max
        entry = torch.where(wins, entry, none)
        first_win = torch.full(best.shape, none).scatter_reduce(0, index, entry, "amin")
        out[first:last] = best
        arg[first:last] = torch.where(first_win == none, -1, first_win)
    return out, arg


def row_chunks(rowptr: Tensor, max_entries: int) -> list[tuple[int, int]]:
    """Cut rows into ranges of at most ``max_entries`` entries (one longer row is a range of its own)."""
    num_rows, bounds, first = rowptr.shape[0] - 1, [], 0
    while first < num_rows:
        limit = int(rowptr[first]) + max(max_entries, 1)
        last = int(torch.searchsorted(rowptr, limit, right=True)) - 1
        last = min(max(last, first + 1), num_rows)
        bounds.append((first, last))
        first = last
    return bounds
