"""One direction of a graph, compressed by rows: what every operator reads.

Row ``i`` lists the entries that flow *into* node ``i``. Entries keep the number of the input edge they came from, so
that edge weights are given, and edge results returned, in the order of the caller's ``edge_index``. Duplicate edges
stay separate entries. An operator takes an adjacency as a flat list of tensors (:meth:`Adjacency.tensors`), because
that is what ``torch.library`` schemas can carry.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .bitblock import BitBlocks

INT32_LIMIT = 2**31


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Compressed sparse rows with edge numbers, and the tensor-core blocks where they were built.

    Attributes:
        rowptr: ``[num_rows + 1]`` int32 (int64 from 2³¹ entries on): first entry of each row.
        col: ``[num_edges]`` int32: column of each entry, ascending inside a row.
        edge: ``[num_edges]`` like ``rowptr``: input edge of each entry; empty when that is the identity.
        blocks: tensor-core view of the same pattern, or ``None``.
    """

    rowptr: Tensor
    col: Tensor
    edge: Tensor
    blocks: BitBlocks | None = None

    @property
    def num_rows(self) -> int:
        return self.rowptr.shape[0] - 1

    @property
    def num_edges(self) -> int:
        return self.col.shape[0]

    def tensors(self) -> list[Tensor]:
        """The flat list that operators take; :meth:`unpack` is its inverse."""
        head = [self.rowptr, self.col, self.edge]
        return head if self.blocks is None else head + self.blocks.tensors()

    @classmethod
    def unpack(cls, tensors: list[Tensor]) -> Adjacency:
        """Read back what :meth:`tensors` wrote."""
        blocks = BitBlocks.unpack(tensors[3:]) if len(tensors) > 3 else None
        return cls(tensors[0], tensors[1], tensors[2], blocks)

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
        counts = self.rowptr.long().diff()
        ids = torch.arange(self.num_rows, device=counts.device)
        return ids.repeat_interleave(counts, output_size=self.num_edges)


def compress(row: Tensor, col: Tensor, num_rows: int, num_cols: int) -> Adjacency:
    """Sort coordinate pairs into an :class:`Adjacency`.

    Args:
        row: ``[num_edges]`` integer, target of each edge, in ``[0, num_rows)``.
        col: ``[num_edges]`` integer, source of each edge, in ``[0, num_cols)``.
        num_rows: number of targets.
        num_cols: number of sources.

    Stable: duplicates keep their input order. No host synchronisation under ``torch.compile``.
    """
    key, order = (row.long() * max(num_cols, 1) + col.long()).sort(stable=True)
    index_dtype = torch.int32 if row.shape[0] < INT32_LIMIT else torch.int64
    rowptr = torch.searchsorted(key, torch.arange(num_rows + 1, device=row.device) * max(num_cols, 1))
    col = col.index_select(0, order).to(torch.int32)
    if not torch.compiler.is_compiling() and is_identity(order):
        order = order[:0]
    return Adjacency(rowptr.to(index_dtype), col, order.to(index_dtype))


def transpose(adjacency: Adjacency, num_cols: int) -> Adjacency:
    """The same entries compressed by column, sharing edge numbers.

    A symmetric pattern shares ``rowptr`` and ``col`` (and its blocks) with its transpose: only the edge numbers differ.
    """
    rows = adjacency.rows()
    order = adjacency.col.sort(stable=True)[1]
    edge = order if adjacency.edge.numel() == 0 else adjacency.edge.index_select(0, order)
    edge = edge.to(adjacency.rowptr.dtype)
    counts_to = torch.arange(num_cols + 1, device=rows.device, dtype=torch.int32)
    rowptr = torch.searchsorted(adjacency.col.index_select(0, order), counts_to).to(adjacency.rowptr.dtype)
    col = rows.index_select(0, order).to(torch.int32)
    if not torch.compiler.is_compiling():
        same = torch.equal(rowptr, adjacency.rowptr) and torch.equal(col, adjacency.col)
        if same:
            return Adjacency(adjacency.rowptr, adjacency.col, edge, adjacency.blocks)
    return Adjacency(rowptr, col, edge)


def is_identity(order: Tensor) -> bool:
    """Whether a permutation moves nothing."""
    return bool(torch.equal(order, torch.arange(order.shape[0], device=order.device, dtype=order.dtype)))
