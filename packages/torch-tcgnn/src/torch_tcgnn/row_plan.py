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
TRIP = 4
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

    def tensors(self) -> list[Tensor]:
        return [self.pieces, self.wide, self.short, self.cut_rows]


def longest_piece(num_edges: int) -> int:
    """Where rows of a graph of ``num_edges`` entries are cut (measured on an H200)."""
    return LONGEST if num_edges >= FEW_ENTRIES else LONGEST // 2


def plan_rows(rowptr: Tensor, *, longest: int = LONGEST) -> RowPlan:
    """Sort and cut the rows of ``rowptr`` (``[num_rows + 1]`` integer); synchronises with the device for the sizes."""
    dtype = rowptr.dtype
    rowptr = rowptr.long()
    length = rowptr.diff()
    key = torch.where(length > WIDE, length, (length + TRIP - 1) // TRIP)
    row = key.sort(descending=True, stable=True)[1]
    num_cut, num_wide = torch.stack([(length > longest).sum(), (length > WIDE).sum()]).tolist()
    items = torch.stack([row, rowptr[:-1][row], rowptr[1:][row]], dim=1)

    cut = row[:num_cut]
    count = (length[cut] + longest - 1) // longest
    first = exclusive_scan(count)
    owner = torch.arange(num_cut, device=row.device).repeat_interleave(count)
    begin = rowptr[cut[owner]] + (torch.arange(owner.shape[0], device=row.device) - first[owner]) * longest
    end = torch.minimum(begin + longest, rowptr[cut[owner] + 1])
    return RowPlan(
        pieces=torch.stack([cut[owner], begin, end], dim=1).to(dtype),
        wide=items[num_cut:num_wide].to(dtype).contiguous(),
        short=items[num_wide:].to(dtype).contiguous(),
        cut_rows=torch.stack([cut, first[:-1], first[1:]], dim=1).to(dtype),
    )
