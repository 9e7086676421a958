"""The work list of the row kernels: who sums which entries.

Rows are sorted by the trips they take, so that rows which share a warp, and warps which share a thread block, end
together; long rows get a warp of their own, and the longest are cut into pieces whose partial sums a second pass adds
in their order, which keeps results deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .bitblock import exclusive_scan

LONGEST = 256
"""Entries of the longest row, or piece of a row, that one warp sums."""
FEW_ENTRIES = 1 << 20
"""Below this many entries a graph's hubs end last, and pieces are half as long."""
WIDE = 64
"""Rows of more entries have a warp of their own; shorter ones share one."""
TRIP_BITS = 2
TRIP = 1 << TRIP_BITS
"""Entries that a row has in flight: rows that need equally many trips of this size are neighbours in the list."""


@dataclass(frozen=True, eq=False)
class RowPlan:
    """Items of work, each ``(row, first entry, end entry)``, of the type of ``rowptr``.

    Attributes:
        pieces: ``[P, 3]``: pieces of cut rows; piece ``p`` writes partial row ``p``.
        wide: ``[W, 3]``: whole rows of more than :data:`WIDE` entries, longest first.
        short: ``[S, 3]``: all other rows, most trips first.
        cut_rows: ``[R, 3]``: row, its first and end piece.
    """

    LENGTH: ClassVar[int] = 4
    """Number of tensors."""

    pieces: Tensor
    wide: Tensor
    short: Tensor
    cut_rows: Tensor

    @property
    def num_rows(self) -> int:
        return self.cut_rows.shape[0] + self.wide.shape[0] + self.short.shape[0]

    def tensors(self) -> list[Tensor]:
        return [self.pieces, self.wide, self.short, self.cut_rows]


def longest_piece(num_edges: int) -> int:
    """Where rows of a graph of ``num_edges`` entries are cut (measured on an H200)."""
    return LONGEST if num_edges >= FEW_ENTRIES else LONGEST // 2


def plan_rows(rowptr: Tensor, *, longest: int = LONGEST, rows: Tensor | None = None) -> RowPlan:
    """Sort and cut rows; synchronises with the device for the sizes.

    Args:
        rowptr: ``[num_rows + 1]`` integer.
        longest: entries from which on a row is cut.
        rows: ``[R]`` integer: the rows to plan for; default: all.
    """
    dtype, length = rowptr.dtype, rowptr.diff()
    if rows is not None:
        length = length.index_select(0, rows)
    wide = min(WIDE, longest)
    is_wide, is_cut = length > wide, length > longest
    key = torch.where(is_wide, length, (length + (TRIP - 1)) >> TRIP_BITS)
    place = key.sort(descending=True, stable=True)[1]
    row = place if rows is None else rows.index_select(0, place)
    ends = (end.index_select(0, row) for end in (rowptr[:-1], rowptr[1:]))
    items = torch.stack([row.to(dtype), *ends], dim=1)
    num_wide, num_cut = torch.stack([is_wide.sum(), is_cut.sum()]).tolist()
    wide_rows, short = _own(items[num_cut:num_wide]), _own(items[num_wide:])
    if num_cut == 0:
        none = items.new_empty(0, 3)
        return RowPlan(pieces=none, wide=wide_rows, short=short, cut_rows=none)
    cut = items[:num_cut].long()
    count = (cut[:, 2] - cut[:, 1] + (longest - 1)) // longest
    first = exclusive_scan(count)
    return RowPlan(
        pieces=_pieces(cut, count, first, longest).to(dtype),
        wide=wide_rows,
        short=short,
        cut_rows=torch.stack([cut[:, 0], first[:-1], first[1:]], dim=1).to(dtype),
    )


def _own(items: Tensor) -> Tensor:
    """A list at an address of its own: kernels are compiled anew where one is not aligned to 16 bytes."""
    return items if items.storage_offset() == 0 else items.clone()


def _pieces(cut: Tensor, count: Tensor, first: Tensor, longest: int) -> Tensor:
    """The rows of ``cut`` in pieces of ``longest`` entries: ``count`` of each, numbered from ``first`` on."""
    owner = torch.arange(cut.shape[0], device=cut.device).repeat_interleave(count)
    begin = cut[:, 1][owner] + (torch.arange(owner.shape[0], device=cut.device) - first[owner]) * longest
    end = torch.minimum(begin + longest, cut[:, 2][owner])
    return torch.stack([cut[:, 0][owner], begin, end], dim=1)
