"""The tensor-core view of a sparsity pattern: windows of rows, condensed columns, one bit an entry.

Rows are cut into windows of ``height``; the distinct columns of a window, ascending, are condensed to 0, 1, 2, … and
cut into blocks of eight (sparse graph translation, TC-GNN section 4; bit masks with ranks by popcount as in Acc-SpMM,
PPoPP 2025). Bit ``r * 8 + c`` of a block's mask says that row ``r`` of the window has condensed column ``c``; the
place of an entry among the stored values (its *slot*) is the block's first slot plus the number of lower set bits.
Duplicate edges share a slot, up to as many as every type of features counts exactly; more take a further condensed
column of the same original column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

WIDTH = 8
"""Condensed columns of a block."""
COPIES = 256
"""Duplicates that share a slot: bfloat16 holds every integer up to here, float16 and TF32 every one up to 2048."""
CHUNK = 1 << 18
"""Entries that a CPU translates at a time: a few arrays of them stay in its caches."""
MANY_BLOCKS = 1 << 17
"""Blocks from which on work items may be longer: there are enough of them to fill a GPU."""
Select = Callable[[Tensor, Tensor], Tensor]
"""``(entries, blocks)``, each ``[W]``, to the ``[W]`` boolean mask of the windows that get blocks."""


@dataclass(frozen=True, eq=False)
class Translation:
    """Blocks before they are cut into work items. Names, shapes and types as those of :class:`BitBlocks`, except:

    Attributes:
        win_ptr: ``[W + 1]`` int64.
        longest: blocks of the window that has most.
        chosen: ``[W]`` boolean: the windows that got blocks; ``None``: all.
    """

    win_ptr: Tensor
    longest: int
    chosen: Tensor | None
    block_col: Tensor
    block_mask: Tensor
    block_slot: Tensor
    slot_entry: Tensor
    slot_ptr: Tensor


Translate = Callable[[Tensor, Tensor, int, Select | None], Translation | None]
"""``(rowptr, col, height, select)`` to the blocks, or to ``None`` for a pattern that it leaves to sorting."""


@dataclass(frozen=True, eq=False)
class BitBlocks:
    """Blocks of one adjacency, or of some of its windows. ``W`` windows, ``B`` blocks, ``S`` slots, ``E`` entries.

    Attributes:
        win_ptr: ``[W + 1]`` int32: first block of each window.
        block_col: ``[B, 8]`` int32: original column of each condensed column, −1 where padded.
        block_mask: ``[B, height / 8]`` int64: which of the block's ``height × 8`` places are filled.
        block_slot: ``[B + 1]`` int32: first slot of each block.
        slot_entry: ``[E]``: entries of the adjacency in slot order; those of the windows that have blocks.
        slot_ptr: ``[S + 1]``: first of ``slot_entry`` for each slot; empty when no slot holds two entries. None holds
            more than :data:`COPIES`.
        items: ``[I, 4]`` int32: the work list, longest first: window, first block, end block, and the row of the
            partial-result workspace (−1: the item holds the whole window).
        splits: ``[P, 3]`` int32: windows that were split: window, first and end partial row.
        partial_window: int32, one a partial row: its window (the length sizes the workspace without asking the device).
        row_order: ``[num_rows]`` int32: row at each place of the windows; empty when that is the identity.
    """

    LENGTH: ClassVar[int] = 10
    """Number of tensors."""

    win_ptr: Tensor
    block_col: Tensor
    block_mask: Tensor
    block_slot: Tensor
    slot_entry: Tensor
    slot_ptr: Tensor
    items: Tensor
    splits: Tensor
    partial_window: Tensor
    row_order: Tensor

    @property
    def height(self) -> int:
        return 8 * self.block_mask.shape[1]

    @property
    def num_blocks(self) -> int:
        return self.block_col.shape[0]

    @property
    def num_slots(self) -> int:
        return self.slot_ptr.shape[0] - 1 if self.slot_ptr.numel() else self.slot_entry.shape[0]

    @property
    def has_all_windows(self) -> bool:
        """Whether every window has work items; shapes tell, the device is not asked."""
        whole = self.items.shape[0] - self.partial_window.shape[0]
        return whole + self.splits.shape[0] == self.win_ptr.shape[0] - 1

    @property
    def windows(self) -> Tensor:
        """``[W]`` boolean: the windows that have work items, and so their rows written."""
        held = torch.zeros(self.win_ptr.shape[0] - 1, dtype=torch.bool, device=self.win_ptr.device)
        return held.index_fill_(0, self.items[:, 0].long(), True)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors())

    def tensors(self) -> list[Tensor]:
        return [getattr(self, f.name) for f in fields(self)]

    def slot_values(self, entry_values: Tensor | None) -> Tensor | None:
        """``[E, ...]`` values in entry order to ``[S, ...]`` in slot order, duplicates summed in a fixed order.

        ``None`` (unweighted) stays ``None`` unless duplicates exist: then it is their multiplicity in float32, which
        rounding to any type of features leaves as it is. Sums of 16-bit values are float32.
        """
        if self.slot_ptr.numel() == 0:
            return None if entry_values is None else entry_values.index_select(0, self.slot_entry)
        if entry_values is None:
            return self.slot_ptr.diff().to(torch.float32)
        ordered = entry_values.index_select(0, self.slot_entry)
        if ordered.dtype.itemsize == 2:
            ordered = ordered.float()
        return torch.segment_reduce(ordered, "sum", offsets=self.slot_ptr.long(), axis=0)

    def edge_to_slot(self, edge: Tensor) -> Tensor:
        """``[E]`` int64: slot of each input edge; ``edge`` is :attr:`Adjacency.edge` of the same adjacency."""
        entry = self.slot_entry.long()
        if self.slot_ptr.numel() == 0:
            slot = torch.arange(entry.shape[0], device=entry.device)
        else:
            slot = torch.repeat_interleave(self.slot_ptr.long().diff(), output_size=entry.shape[0])
        target = entry if edge.numel() == 0 else edge.long().index_select(0, entry)
        return torch.empty_like(slot).index_copy_(0, target, slot)


def build(
    rowptr: Tensor,
    col: Tensor,
    num_cols: int,
    *,
    height: int = 8,
    max_blocks: int | None = None,
    row_order: Tensor | None = None,
    select: Select | None = None,
    translate: Translate | None = None,
) -> BitBlocks:
    """Translate compressed rows into :class:`BitBlocks`; whole-tensor operations only, on any device.

    Args:
        rowptr: ``[num_rows + 1]`` integer.
        col: ``[num_edges]`` int32, ascending inside a row.
        num_cols: number of columns.
        height: rows of a window, 8 or 16.
        max_blocks: longest work item; longer windows are split and summed in a fixed order. Default: 64, or 32 where
            that would leave a large GPU short of items.
        row_order: ``[num_rows]`` integer permutation: which rows share a window (see ``reorder``).
        select: which windows get blocks; default: all.
        translate: a faster way to the same blocks; patterns that it leaves are sorted.
    """
    if height not in (8, 16):
        raise ValueError(f"height must be 8 or 16, got {height}")
    if max_blocks is not None and max_blocks < 1:
        raise ValueError(f"max_blocks must be at least 1, got {max_blocks}")
    index_dtype, entry = rowptr.dtype, None
    if row_order is not None:
        entry = entries_of(rowptr, row_order, col.shape[0])
        rowptr = exclusive_scan(rowptr.diff().index_select(0, row_order)).to(index_dtype)
        col = col.index_select(0, entry)
    found = None if translate is None else translate(rowptr, col, height, select)
    if found is None:
        found = _by_sorting(rowptr, col, num_cols, height, select)
    num_blocks, win_ptr, slot_entry = found.block_col.shape[0], found.win_ptr.to(torch.int32), found.slot_entry
    if max_blocks is None:
        max_blocks = 64 if num_blocks >= MANY_BLOCKS else 32
    items, splits, partial_window = work_list(win_ptr, max_blocks, found.chosen, longest=found.longest)
    return BitBlocks(
        win_ptr=win_ptr,
        block_col=found.block_col,
        block_mask=found.block_mask,
        block_slot=found.block_slot,
        slot_entry=slot_entry if entry is None else entry.index_select(0, slot_entry).to(index_dtype),
        slot_ptr=found.slot_ptr,
        items=items,
        splits=splits,
        partial_window=partial_window,
        row_order=win_ptr.new_empty(0) if row_order is None else row_order.to(torch.int32),
    )


def _by_sorting(rowptr: Tensor, col: Tensor, num_cols: int, height: int, select: Select | None) -> Translation:
    """The blocks of any pattern, by sorting entries; arguments as those of :func:`build`."""
    index_dtype, chosen, parts = rowptr.dtype, None, []
    for rows, entries in _window_ranges(rowptr, col.shape[0], height, at_once=select is not None):
        part = _translate(rowptr[rows.start : rows.stop + 1], col[entries], num_cols, height, select)
        chosen, *sizes, slot_entry, first = part
        parts.append((*sizes, *(_shifted(t, entries.start).to(index_dtype) for t in (slot_entry, first))))
    joined = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts))
    per_window, block_col, block_mask, per_block, slot_entry, first = joined
    has_duplicates = first.shape[0] != slot_entry.shape[0]
    return Translation(
        win_ptr=exclusive_scan(per_window),
        longest=int(per_window.max()) if per_window.shape[0] else 0,
        chosen=chosen,
        block_col=block_col.view(-1, WIDTH),
        block_mask=block_mask.view(-1, height // 8),
        block_slot=exclusive_scan(per_block).to(index_dtype),
        slot_entry=slot_entry,
        slot_ptr=torch.cat([first, first.new_tensor([slot_entry.shape[0]])]) if has_duplicates else first[:0],
    )


def _shifted(numbers: Tensor, by: int) -> Tensor:
    return numbers + by if by else numbers


def _window_ranges(rowptr: Tensor, num_edges: int, height: int, at_once: bool) -> list[tuple[slice, slice]]:
    """Rows, and their entries, to translate at a time: whole windows; what a CPU's caches hold, elsewhere all."""
    num_rows = rowptr.shape[0] - 1
    if at_once or rowptr.device.type != "cpu" or num_edges <= CHUNK:
        return [(slice(0, num_rows), slice(0, num_edges))]
    full = torch.arange(0, num_edges, CHUNK, dtype=rowptr.dtype)
    cuts = (torch.searchsorted(rowptr, full) // height * height).unique()
    ends = rowptr.index_select(0, cuts).tolist()[1:]
    cuts = cuts.tolist()
    rows, entries = zip(cuts, [*cuts[1:], num_rows]), zip([0, *ends], [*ends, num_edges])
    return [(slice(*r), slice(*e)) for r, e in zip(rows, entries)]


def _translate(rowptr: Tensor, col: Tensor, num_cols: int, height: int, select: Select | None) -> tuple[Any, ...]:
    """Mask of the chosen windows (``None``: all), then the blocks and slots of some rows, whole windows."""
    device, num_rows = col.device, rowptr.shape[0] - 1
    row_bits = height.bit_length() - 1
    row = torch.repeat_interleave(rowptr.diff(), output_size=col.shape[0])

    # Vectors: the distinct columns of each window, at consecutive places of eight a block; a column comes again for
    # pairs of a row and it that have more than COPIES entries.
    num_windows, stride = -(-num_rows // height), max(num_cols, 1)
    key_dtype = integer_below(num_windows * stride + 1)
    window_col = (row >> row_bits).to(key_dtype).mul_(stride).add_(col)
    layer = _layers(row, col)
    if layer is None:
        window_col, by_column = window_col.sort(stable=True)
        head = first_of_run(window_col)
    else:
        by_layer = layer.sort(stable=True)[1]
        window_col, by_column = window_col.index_select(0, by_layer).sort(stable=True)
        by_column = by_layer.index_select(0, by_column)
        head = first_of_run(window_col) | first_of_run(layer.index_select(0, by_column))
    vectors = window_col[head]
    window_start = (torch.arange(num_windows + 1, device=device) * stride).to(key_dtype)
    vector_ptr = torch.searchsorted(vectors, window_start)
    per_window = (vector_ptr.diff() + WIDTH - 1) // WIDTH
    window = torch.repeat_interleave(vector_ptr.diff(), output_size=vectors.shape[0])
    chosen = None
    if select is not None:
        chosen = select(torch.cat([rowptr[:-1:height], rowptr[-1:]]).diff(), per_window)
        if chosen.all():
            chosen = None
        else:
            kept = chosen.index_select(0, window)
            vectors, window = vectors[kept], window[kept]
            kept = kept.index_select(0, head.cumsum(0).sub_(1))
            by_column, head = by_column[kept], head[kept]
            per_window = per_window * chosen
            vector_ptr = exclusive_scan(vector_ptr.diff() * chosen)
    win_ptr = exclusive_scan(per_window)
    place = (win_ptr * WIDTH - vector_ptr).index_select(0, window)
    place += torch.arange(vectors.shape[0], device=device)
    num_blocks = int(win_ptr[-1])
    block_col = torch.full((num_blocks * WIDTH,), -1, dtype=torch.int32, device=device)
    block_col[place] = vectors.sub_(window.mul_(stride)).to(torch.int32)

    # Slots: the distinct (block, row, condensed column), in that order.
    place = place.to(integer_below(num_blocks * height * WIDTH))
    place = place.index_select(0, head.cumsum(0, dtype=rowptr.dtype).sub_(1))
    row = (row & (height - 1)).index_select(0, by_column)
    bit = (place >> 3 << (row_bits + 3)).add_(row << 3).add_(place & 7)
    bit, by_slot = bit.sort(stable=True)
    first = torch.arange(bit.shape[0], device=device)
    head = first_of_run(bit)
    if not head.all():
        first = head.nonzero().view(-1)
        bit = bit.index_select(0, first)
    block_mask = torch.zeros(num_blocks * height // 8, dtype=torch.int64, device=device)
    powers = torch.ones(64, dtype=torch.int64, device=device) << torch.arange(64, device=device)
    block_mask.index_add_(0, bit >> 6, powers.index_select(0, bit & 63))
    blocks = torch.arange(num_blocks + 1, dtype=bit.dtype, device=device)
    per_block = torch.searchsorted(bit >> (row_bits + 3), blocks).diff()
    return chosen, per_window, block_col, block_mask, per_block, by_column.index_select(0, by_slot), first


def _layers(row: Tensor, col: Tensor) -> Tensor | None:
    """``[E]`` which :data:`COPIES` of its row and column an entry is among; ``None`` where no pair has so many."""
    if not bool(((row[COPIES:] == row[:-COPIES]) & (col[COPIES:] == col[:-COPIES])).any()):
        return None
    position = torch.arange(row.shape[0], device=row.device)
    first = torch.where(first_of_run(row) | first_of_run(col), position, 0).cummax(0)[0]
    return (position - first) // COPIES


def work_list(
    win_ptr: Tensor, max_blocks: int, chosen: Tensor | None, *, longest: int
) -> tuple[Tensor, Tensor, Tensor]:
    """``items, splits, partial_window``: windows cut into pieces of at most ``max_blocks`` blocks, longest first.

    ``longest``: blocks of the longest window. A chosen window (``None``: any) without entries keeps one empty item:
    somebody has to write its zero rows.
    """
    if longest <= max_blocks:
        return _whole_windows(win_ptr, chosen)
    win_ptr, device = win_ptr.long(), win_ptr.device
    pieces = (win_ptr.diff() + (max_blocks - 1)) // max_blocks
    pieces = pieces.clamp_(min=1) if chosen is None else torch.maximum(pieces, chosen)
    window = torch.repeat_interleave(pieces)
    first_item = exclusive_scan(pieces)
    piece = torch.arange(window.shape[0], device=device) - first_item.index_select(0, window)
    begin = win_ptr.index_select(0, window) + piece * max_blocks
    end = torch.minimum(begin + max_blocks, win_ptr.index_select(0, window + 1))

    is_split = pieces > 1
    first_partial = exclusive_scan(torch.where(is_split, pieces, 0))
    partial = torch.where(is_split[window], first_partial.index_select(0, window) + piece, -1)
    order = (begin - end).sort(stable=True)[1]
    items = torch.stack([window, begin, end, partial], dim=1).index_select(0, order)
    split = is_split.nonzero().view(-1)
    splits = torch.stack([split, first_partial[split], first_partial[split + 1]], dim=1)
    partial_window = window[is_split[window]]
    return items.to(torch.int32).contiguous(), splits.to(torch.int32).contiguous(), partial_window.to(torch.int32)


def _whole_windows(win_ptr: Tensor, chosen: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`work_list` where no window is too long."""
    length, window = win_ptr.diff(), None if chosen is None else chosen.nonzero().view(-1)
    order = (length if window is None else length[window]).sort(descending=True, stable=True)[1]
    window = order if window is None else window[order]
    ends = (end.to(torch.int32).index_select(0, window) for end in (win_ptr[:-1], win_ptr[1:]))
    window = window.to(torch.int32)
    items = torch.stack([window, *ends, torch.full_like(window, -1)], dim=1)
    return items, items.new_empty(0, 3), items.new_empty(0)


def integer_below(limit: int) -> torch.dtype:
    """The narrowest index type that holds every integer below ``limit``: half the width sorts in half the time.

    ``torch.export`` makes one program for all sizes: there it is always the wide one.
    """
    return torch.int32 if not torch.compiler.is_exporting() and limit <= 2**31 else torch.int64


def entries_of(rowptr: Tensor, rows: Tensor, num_entries: int) -> Tensor:
    """The entries of ``rows``, row after row, where ``rows`` hold ``num_entries`` together."""
    counts = rowptr.diff().index_select(0, rows)
    shift = rowptr.index_select(0, rows) - exclusive_scan(counts)[:-1]
    return torch.arange(num_entries, device=rowptr.device) + shift.repeat_interleave(counts, output_size=num_entries)


def first_of_run(values: Tensor) -> Tensor:
    """Boolean mask of the first element of each run of equal values."""
    head = torch.ones(values.shape[0], dtype=torch.bool, device=values.device)
    torch.ne(values[1:], values[:-1], out=head[1:])
    return head


def exclusive_scan(counts: Tensor) -> Tensor:
    """``[n]`` to ``[n + 1]``: 0, c₀, c₀ + c₁, …"""
    total = torch.zeros(counts.shape[0] + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=total[1:])
    return total
