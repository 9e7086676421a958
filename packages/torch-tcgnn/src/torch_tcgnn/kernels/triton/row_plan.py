"""The work list of the row kernels: rows sorted by the trips they need, long rows first and cut where asked.

Derived from ``rowptr`` once (one synchronisation with the device) and kept as long as that tensor lives.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

SPLIT = 1024
"""Longest piece of a row, in entries, where rows are cut."""
WIDE_FROM = 64
"""Rows of more entries than this get a program of their own."""
UNROLL = 4
"""Entries that a lane has in flight; rows that need equally many trips of this size share a program."""


@dataclass(frozen=True, eq=False)
class RowPlan:
    """Items of work. The first ``num_wide`` have a program each, the others share one.

    Attributes:
        row: ``[I]`` int32: row of each item.
        begin: ``[I]``: first entry.
        end: ``[I]``: end entry.
        num_wide: items of more than ``WIDE_FROM`` entries, longest first.
        part: ``[num_wide]`` int32: which partial result the item is, −1 where it holds its whole row; empty when no
            row is cut.
        num_parts: number of partial results.
        parts: how to add them: an item a cut row, over partial results as entries; ``None`` when no row is cut.
    """

    row: Tensor
    begin: Tensor
    end: Tensor
    num_wide: int
    part: Tensor
    num_parts: int
    parts: RowPlan | None

    @property
    def num_items(self) -> int:
        return self.row.shape[0]

    def num_programs(self, lanes: int) -> int:
        """Programs when ``lanes`` short items share one."""
        return self.num_wide - (self.num_wide - self.num_items) // lanes


_PLANS = WeakTensorKeyDictionary()


def row_plan(rowptr: Tensor, num_edges: int, *, split: bool) -> RowPlan:
    """The plan of compressed rows, built at the first call for this ``rowptr``.

    Args:
        rowptr: ``[num_rows + 1]`` integer.
        num_edges: its last element, known to the host.
        split: cut rows into pieces of at most ``SPLIT`` entries.

    Raises:
        RuntimeError: the first call for a graph comes inside a CUDA graph capture.
    """
    plans = _PLANS.get(rowptr)
    if plans is None:
        plans = _PLANS[rowptr] = {}
    key = split and num_edges > SPLIT
    if key not in plans:
        if rowptr.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("the work list of this graph must exist before capture: run the operator once on it")
        plans[key] = _build(rowptr, num_edges, SPLIT if key else None)
        if rowptr.is_cuda:  # another stream may use the plan next
            torch.cuda.current_stream(rowptr.device).synchronize()
    return plans[key]


def _build(rowptr: Tensor, num_edges: int, split: int | None) -> RowPlan:
    device, num_rows = rowptr.device, rowptr.shape[0] - 1
    length = rowptr.diff()
    row = torch.arange(num_rows, device=device, dtype=torch.int32)
    begin, end = rowptr[:-1], rowptr[1:]
    empty = row[:0]
    if split is None:
        num_wide = int((length > WIDE_FROM).sum()) if num_edges > WIDE_FROM else 0
        order = _trips(length).sort(descending=True, stable=True)[1]
        return RowPlan(row[order], begin[order], end[order], num_wide, empty, 0, None)

    pieces = ((length + split - 1) // split).clamp(min=1)
    is_cut = pieces > 1
    row = row.repeat_interleave(pieces)
    first_piece = pieces.cumsum(0) - pieces
    piece = torch.arange(row.shape[0], device=device) - first_piece[row]
    cut_pieces = torch.where(is_cut, pieces, 0)
    first_part = cut_pieces.cumsum(0) - cut_pieces
    part = torch.where(is_cut[row], first_part[row] + piece, -1).to(torch.int32)
    piece_begin = begin[row] + piece * split
    piece_end = torch.minimum(piece_begin + split, end[row])
    # pieces of cut rows count as long whatever is left for the last: only long items know partial results
    trips = _trips(piece_end - piece_begin).clamp(min=torch.where(part >= 0, WIDE_FROM + 1, 0))
    order = trips.sort(descending=True, stable=True)[1]
    num_wide, num_parts = torch.stack([(trips > WIDE_FROM).sum(), cut_pieces.sum()]).tolist()
    cut = is_cut.nonzero().view(-1)
    parts = None
    if num_parts:
        last = first_part[cut] + pieces[cut]
        parts = RowPlan(cut.to(torch.int32), first_part[cut], last, cut.shape[0], empty, 0, None)
    dtype = rowptr.dtype
    return RowPlan(
        row[order], piece_begin[order].to(dtype), piece_end[order].to(dtype), num_wide,
        part[order][:num_wide] if num_parts else empty, num_parts, parts,
    )  # fmt: skip


def _trips(length: Tensor) -> Tensor:
    """What to sort by: trips of a short row (at most ``WIDE_FROM / UNROLL``), entries of a long one (more than that)."""
    return torch.where(length > WIDE_FROM, length, (length + UNROLL - 1) // UNROLL)
