"""Runs: in each row of blocks, stretches of neighbouring columns of one kind.

A *stretch* is a piece of a run while a mask is being built: two integers, ``(place << 1) | is_full`` of its first
column and of the column after its last, where ``place = row · (columns + 1) + column``. Stretches of a mask do not
overlap, so sorting them by the first integer puts them in order, and two belong to one run where the end of one is the
start of the next. Rows count over all batches and heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

NOWHERE = 2**62
"""In place of both integers: no stretch."""
PARTIAL_COST = 1.15
"""What a partial block costs, next to a full one: it evaluates the mask."""
PARTIAL, FULL = 1, 2
"""Kinds of blocks that are computed."""


def stretches(columns: int, row: Tensor, ends: Tensor, is_full: Tensor | int) -> Tensor:
    """Encode stretches.

    Args:
        columns: of blocks in the mask.
        row: int64, counted over all planes, of a shape that broadcasts with ``ends``.
        ends: int64 ``[..., 2]``: first column, and column after the last.
        is_full: 1 or 0, like ``row`` where it is a tensor.

    Returns:
        int64 ``[..., 2]``.
    """
    place = torch.add(ends, row, alpha=columns + 1)
    return torch.add(is_full, place, alpha=2) if isinstance(is_full, Tensor) else place.mul_(2).add_(is_full)


def assemble(found: list[Tensor], rows: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Runs from stretches in any order.

    Args:
        found: stretches, int64 ``[n, 2]`` each.
        rows: of all planes together.
        columns: of blocks.
        device: where they are.

    Returns:
        ``row_ptr`` int32 ``[rows + 1]`` and ``runs`` int32 ``[n, 2]``.
    """
    return by_rows(joined(found, device), rows, columns)


def joined(found: list[Tensor], device: torch.device) -> Tensor:
    """Whole runs in their order, as stretches, from pieces of them in any order."""
    nowhere = torch.full((1, 2), NOWHERE, dtype=torch.int64, device=device)
    together = torch.cat([*found, nowhere])
    first, order = together[:, 0].sort()
    last = together[:, 1].index_select(0, order)
    opens = torch.ones_like(first, dtype=torch.bool)
    torch.ne(first[1:], last[:-1], out=opens[1:])
    opening = opens.nonzero().squeeze(1)  # the last one is of all that is nowhere
    return torch.stack([first.index_select(0, opening[:-1]), last.index_select(0, opening[1:] - 1)], dim=1)


def by_rows(ends: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """``row_ptr`` and ``runs`` of whole runs in their order; what they are made from is written over."""
    width = 2 * (columns + 1)
    bounds = torch.arange(0, (rows + 1) * width, width, device=ends.device)
    row_ptr = torch.searchsorted(ends[:, 0].contiguous(), bounds, out_int32=True)
    runs = ends.remainder_(width).to(torch.int32)
    runs[:, 0].bitwise_right_shift_(1)
    return row_ptr, runs


def rows_of(row_ptr: Tensor, count: int) -> Tensor:
    """Row of each of ``count`` runs, int64 ``[count]``."""
    return torch.repeat_interleave(row_ptr.long().diff(), output_size=count)


def used(row_ptr: Tensor, runs: Tensor) -> Tensor:
    """``runs`` without the places that no row uses (see ``BlockMask.from_block_indices``)."""
    count = int(row_ptr[-1])
    return runs if count == runs.shape[0] else runs[:count]


def lengths_of(runs: Tensor) -> Tensor:
    """Blocks of each run, int64 ``[n]``."""
    return (runs[:, 1] >> 1).long() - runs[:, 0].long()


def columns_of(row_ptr: Tensor, runs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Every block of the runs: row and column, int64, and whether it is full, bool; ``[blocks]`` each."""
    runs = used(row_ptr, runs)
    number, column = counted(runs[:, 0].long(), lengths_of(runs))
    return rows_of(row_ptr, runs.shape[0])[number], column, (runs[:, 1] & 1).bool()[number]


def counted(start: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """``start, start + 1, …``, ``length`` numbers for each entry, after one another; with the entry that each is of."""
    entry = torch.repeat_interleave(length)
    number = torch.arange(entry.shape[0], device=start.device)
    return entry, number + (start - length.cumsum(0) + length)[entry]


def row_cost(row_ptr: Tensor, runs: Tensor) -> Tensor:
    """Blocks of each row, a partial one for :data:`PARTIAL_COST`; float32 ``[rows]``."""
    runs = used(row_ptr, runs)
    weight = torch.where((runs[:, 1] & 1).bool(), 1.0, PARTIAL_COST)
    cost = torch.zeros(row_ptr.shape[0] - 1, device=runs.device)
    return cost.index_add_(0, rows_of(row_ptr, runs.shape[0]), lengths_of(runs) * weight)


def take_rows(row_ptr: Tensor, runs: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The runs of some rows, int64 ``[n]``, in their order."""
    counts = row_ptr.long().diff()[rows]
    chosen = torch.zeros(rows.shape[0] + 1, dtype=torch.int64, device=rows.device)
    torch.cumsum(counts, 0, out=chosen[1:])
    _, place = counted(row_ptr.long()[rows], counts)
    return chosen.to(torch.int32), runs[place]


def transpose(row_ptr: Tensor, runs: Tensor, planes: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """The same blocks by columns: runs of neighbouring rows of one kind.

    What changes from one row to the next opens and closes runs of columns, so the work grows with the number of runs of
    both, not with that of blocks.

    Args:
        row_ptr: int32 ``[planes · rows + 1]``.
        runs: int32 ``[n, 2]``.
        planes: batches times heads.
        rows: of blocks in a plane.
        columns: of blocks.

    Returns:
        ``col_ptr`` int32 ``[planes · columns + 1]`` and runs int32 ``[m, 2]``: (first row, row after the last << 1 |
        is_full).
    """
    runs = used(row_ptr, runs)
    width = columns + 1
    row = rows_of(row_ptr, runs.shape[0])
    line = (row + row // max(rows, 1)) * width  # a line more a plane: below the last row
    first, last, full = line + runs[:, 0], line + (runs[:, 1] >> 1), (runs[:, 1] & 1).long()
    marks = torch.cat([first, last, first + width, last + width]).sort().values
    now, before = (_kind_at(marks - shift, first, last, full) for shift in (0, width))
    length = torch.cat([marks[1:], marks[-1:]]) - marks
    opening = _in_columns(marks, torch.where(now != before, length, 0) * (now > 0), rows, columns)
    closing = _in_columns(marks, torch.where(now != before, length, 0) * (before > 0), rows, columns)
    opened, order = opening[0].sort()
    is_full = (now[opening[1]] == FULL)[order]
    column, start = opened // (rows + 1), opened % (rows + 1)
    stop = closing[0].sort().values % (rows + 1)
    col_ptr = torch.searchsorted(column, torch.arange(planes * columns + 1, device=runs.device), out_int32=True)
    return col_ptr, torch.stack([start, stop * 2 + is_full], dim=1).to(torch.int32)


def _kind_at(places: Tensor, first: Tensor, last: Tensor, full: Tensor) -> Tensor:
    """0 outside all runs, else :data:`PARTIAL` or :data:`FULL`."""
    if not first.shape[0]:
        return torch.zeros_like(places)
    number = torch.searchsorted(first, places, right=True) - 1
    found = number.clamp(min=0)
    inside = (number >= 0) & (places < last[found])
    return torch.where(inside, PARTIAL + full[found], 0)


def _in_columns(marks: Tensor, length: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """``length`` columns from each mark on: ``column · (rows + 1) + row``, and the number of the mark."""
    number, inside = counted(torch.zeros_like(length), length)
    line, column = marks // (columns + 1), marks % (columns + 1)
    place = (line // (rows + 1) * columns + column) * (rows + 1) + line % (rows + 1)
    return place[number] + inside * (rows + 1), number
