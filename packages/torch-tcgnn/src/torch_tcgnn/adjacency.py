"""One direction of a graph, compressed by rows: what every operator reads.

Row ``i`` lists the entries that flow *into* node ``i``. Entries keep the number of the input edge they came from, so
that edge weights are given, and edge results returned, in the order of the caller's ``edge_index``. Duplicate edges
stay separate entries. An operator takes an adjacency as a flat list of tensors (:meth:`Adjacency.tensors`), because
that is what ``torch.library`` schemas can carry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .bitblock import BitBlocks, integer_below
from .row_plan import RowPlan

INT32_LIMIT = 2**31
PAST_THE_END = 1 << 10
"""More than the entries by which a kernel's counter may pass the last one before its loop ends."""


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Compressed sparse rows with edge numbers, and the tensor-core blocks where they were built.

    Attributes:
        rowptr: ``[num_rows + 1]`` int32 (int64 from nearly 2³¹ entries on): first entry of each row.
        col: ``[num_edges]`` int32: column of each entry, ascending inside a row.
        edge: ``[num_edges]`` like ``rowptr``: input edge of each entry; empty when that is the identity.
        plan: work list of the row kernels for all rows, or ``None``.
        blocks: the pattern for the tensor-core kernels, or ``None``.
        rest: work list for the rows that ``blocks`` leave out, or ``None`` where they leave out none.
        decisions: which kernels were chosen for which operands (see ``kernels.choose``).

    On a GPU an adjacency carries what the paths it may take need: both, or only one where the caller fixed the path.
    """

    rowptr: Tensor
    col: Tensor
    edge: Tensor
    plan: RowPlan | None = None
    blocks: BitBlocks | None = None
    rest: RowPlan | None = None
    decisions: dict[Any, Any] = field(init=False, default_factory=dict, repr=False)

    @property
    def num_rows(self) -> int:
        return self.rowptr.shape[0] - 1

    @property
    def num_edges(self) -> int:
        return self.col.shape[0]

    def tensors(self) -> list[Tensor]:
        """The flat list that operators take; :meth:`unpack` is its inverse."""
        parts = (self.plan, self.blocks, self.rest)
        return [self.rowptr, self.col, self.edge, *(t for part in parts if part is not None for t in part.tensors())]

    @classmethod
    def unpack(cls, tensors: list[Tensor]) -> Adjacency:
        """Read back what :meth:`tensors` wrote; the length tells which parts are there."""
        rowptr, col, edge, *parts = tensors
        plan = blocks = rest = None
        if len(parts) not in (0, BitBlocks.LENGTH):
            plan, parts = RowPlan(*parts[: RowPlan.LENGTH]), parts[RowPlan.LENGTH :]
        if parts:
            blocks, parts = BitBlocks(*parts[: BitBlocks.LENGTH]), parts[BitBlocks.LENGTH :]
        if parts:
            rest = RowPlan(*parts)
        return cls(rowptr, col, edge, plan, blocks, rest)

    def gathered(self, path: str) -> int:
        """Rows of features that a sum reads: one a column of a window on tensor cores, one an entry elsewhere.

        Args:
            path: ``"tc"``, ``"mixed"`` (both, each for its rows), or anything else for rows alone.
        """
        if path not in ("tc", "mixed") or self.blocks is None:
            return self.num_edges
        return int((self.blocks.block_col >= 0).sum()) + self.num_edges - self.blocks.slot_entry.shape[0]

    def to_entries(self, edge_values: Tensor) -> Tensor:
        """``[num_edges, ...]`` values in input edge order, permuted to entry order."""
        return edge_values if self.edge.numel() == 0 else edge_values.index_select(0, self.edge)

    def to_edges(self, entry_values: Tensor) -> Tensor:
        """``[num_edges, ...]`` values in entry order, permuted to input edge order."""
        if self.edge.numel() == 0:
            return entry_values
        return torch.empty_like(entry_values).index_copy_(0, self.edge.long(), entry_values)

    def rows(self) -> Tensor:
        """``[num_edges]`` int64: row of each entry."""
        return torch.repeat_interleave(self.rowptr.long().diff(), output_size=self.num_edges)

    def repeats(self) -> Tensor:
        """``[num_edges]`` boolean: entries that have the place of the entry before them."""
        same = torch.zeros(self.num_edges + 1, dtype=torch.bool, device=self.col.device)
        torch.eq(self.col[1:], self.col[:-1], out=same[1:-1])
        return same.index_fill_(0, self.rowptr.long(), False)[:-1]


def compress(row: Tensor, col: Tensor, num_rows: int, num_cols: int) -> Adjacency:
    """Sort coordinate pairs into an :class:`Adjacency`.

    Args:
        row: ``[num_edges]`` integer, target of each edge, in ``[0, num_rows)``.
        col: ``[num_edges]`` integer, source of each edge, in ``[0, num_cols)``.
        num_rows: number of targets.
        num_cols: number of sources.

    Stable: duplicates keep their input order. No host synchronisation under ``torch.compile``.
    """
    if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
        with torch.inference_mode(False):  # training may use what inference built
            return compress(row, col, num_rows, num_cols)
    index_dtype, stride = pointer_type(row.shape[0]), max(num_cols, 1)
    key_dtype = integer_below(num_rows * stride + 1)
    wide = row if row.dtype.itemsize >= key_dtype.itemsize else row.to(key_dtype)
    key = torch.add(col, wide, alpha=stride).to(key_dtype)
    starts = torch.arange(num_rows + 1, device=row.device, dtype=key_dtype) * stride
    if not torch.compiler.is_compiling() and bool((key[1:] >= key[:-1]).all()):
        order = row.new_empty(0, dtype=index_dtype)
        col = col.to(torch.int32, copy=True)
    else:
        key, order = key.sort(stable=True)
        col, order = col.index_select(0, order).to(torch.int32), order.to(index_dtype)
    rowptr = torch.searchsorted(key, starts, out_int32=index_dtype == torch.int32)
    return Adjacency(rowptr, col, order)


def pointer_type(num_entries: int) -> torch.dtype:
    """int32 while it holds every entry's number and those a little past the end, up to where kernels count."""
    return integer_below(num_entries + PAST_THE_END)


def transpose(adjacency: Adjacency, num_cols: int) -> Adjacency:
    """The same entries compressed by column, sharing edge numbers.

    A symmetric pattern shares ``rowptr`` and ``col`` with its transpose: only the edge numbers differ.
    """
    index_dtype = adjacency.rowptr.dtype
    by_col, order = adjacency.col.sort(stable=True)
    edge = (order if adjacency.edge.numel() == 0 else adjacency.edge.index_select(0, order)).to(index_dtype)
    starts = torch.arange(num_cols + 1, device=order.device, dtype=torch.int32)
    rowptr = torch.searchsorted(by_col, starts).to(index_dtype)
    col = adjacency.rows().to(torch.int32).index_select(0, order)
    if not torch.compiler.is_compiling():
        same = torch.equal(rowptr, adjacency.rowptr) and torch.equal(col, adjacency.col)
        if same:
            return Adjacency(adjacency.rowptr, adjacency.col, edge)
    return Adjacency(rowptr, col, edge)
