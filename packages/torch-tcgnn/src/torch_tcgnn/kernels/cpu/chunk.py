"""Rows of an adjacency in chunks: what the attention kernels of the CPU read and sum, head by head.

Numbers at entries are head-major, ``[H, e]``, because that is how sums over bags take weights and how sampled products
give results: one call does all heads, on a pattern that lists a chunk's rows once a head. Tables of nodes stay as they
come, ``[K, H, F]``, seen as ``[K·H, F]``: entry ``(j, h)`` is row ``j·H + h``.

What depends on the graph alone is kept with it where the graph has at most :data:`REMEMBERED` edges.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ...adjacency import INT32_LIMIT, Adjacency
from .sddmm import sampled_product
from .spmm import gather_sum

T = TypeVar("T")
CHUNK_ELEMENTS = 1 << 18
"""Elements of a chunk, as its form counts them (1 MiB of float32): small enough for the cache and for memory reuse."""
REMEMBERED = 1 << 20
"""Most edges of a graph whose derived indices (4 bytes an edge each) are kept between calls."""
_derived: WeakKeyDictionary[Adjacency, dict[Hashable, Any]] = WeakKeyDictionary()


@dataclass(eq=False)
class Chunk:
    """Rows ``first`` to ``last`` of an adjacency with their entries ``begin`` to ``end``, ``e`` in number.

    Attributes:
        heads: ``H``.
        rowptr: ``[last − first + 1]``, from 0.
        col: ``[e]`` column of each entry.
        row: ``[e]`` row of each entry.
        edges: input edge of every entry of the adjacency; empty when that is the identity.
        wide: type that holds the row numbers of tables.
    """

    first: int
    last: int
    begin: int
    end: int
    heads: int
    rowptr: Tensor
    col: Tensor
    row: Tensor
    edges: Tensor
    wide: torch.dtype

    @property
    def rows(self) -> slice:
        return slice(self.first, self.last)

    @property
    def num_rows(self) -> int:
        return self.last - self.first

    @property
    def edge(self) -> Tensor:
        """``[e]``: input edge of each entry."""
        return self.edges[self.begin : self.end] if self.edges.numel() else torch.arange(self.begin, self.end)

    @cached_property
    def pattern(self) -> tuple[Tensor, Tensor]:
        """Row pointers ``[H·rows + 1]`` and places ``[H·e]`` in a table ``[K·H, ·]``: the rows, once a head."""
        if self.heads == 1:
            return self.rowptr, self.col
        head = torch.arange(self.heads, dtype=self.wide).unsqueeze(1)
        size = self.end - self.begin
        starts = (self.rowptr[:-1].to(self.wide) + head * size).flatten()
        place = (self.col.to(self.wide) * self.heads + head).flatten()
        return torch.cat([starts, starts.new_full((1,), place.shape[0])]), place

    @cached_property
    def identity(self) -> Tensor:
        return torch.arange(self.end - self.begin, dtype=self.rowptr.dtype)

    def at_rows(self, table: Tensor) -> Tensor:
        """``[H, e]``: the value of each entry's row in ``[H, M]``."""
        return _select(table, self.row)

    def at_cols(self, table: Tensor) -> Tensor:
        """``[H, e]``: the value of each entry's column in ``[H, K]``."""
        return _select(table, self.col)

    def total(self, entries: Tensor) -> Tensor:
        """``[rows, ...]``: sum of ``[e, ...]`` by row."""
        sums = gather_sum(self.rowptr, self.identity, entries.flatten(1), None)
        return sums.view(self.num_rows, *entries.shape[1:])

    def weighted_sum(self, weight: Tensor, table: Tensor) -> Tensor:
        """``[rows, H, F]``, a view: ``Σ weight[h, e] · table[col[e], h]`` for a contiguous ``[K, H, F]`` table."""
        sums = gather_sum(*self.pattern, table.flatten(0, 1), weight.flatten())
        return sums.unflatten(0, (self.heads, self.num_rows)).transpose(0, 1)

    def product(self, rows: Tensor, table: Tensor) -> Tensor:
        """``[H, e]``: ``<rows[h, row], table[col, h]>`` for contiguous ``[H, M, D]`` and ``[K, H, D]``."""
        found = sampled_product(*self.pattern, rows[:, self.rows].flatten(0, 1), table.flatten(0, 1))
        return found.unflatten(0, (self.heads, -1))


def chunks(adjacency: Adjacency, width: int, heads: int, num_cols: int) -> Iterator[Chunk]:
    """Cut an adjacency into chunks for ``width`` elements an entry; rows without entries at all may be left out.

    What would fill less than two chunks is one, which is kept with the graph.
    """
    most = max(CHUNK_ELEMENTS // max(width, 1), 1)
    if adjacency.num_edges < 2 * most:
        cuts = [(0, adjacency.num_rows)]
        whole = once(adjacency, ("whole", heads, num_cols), lambda: [*_cut(adjacency, cuts, heads, num_cols)])
        return iter(whole)
    cuts = once(adjacency, ("cuts", most), lambda: row_chunks(adjacency.rowptr, most))
    return _cut(adjacency, cuts, heads, num_cols)


def row_chunks(rowptr: Tensor, max_entries: int) -> list[tuple[int, int]]:
    """Cut rows into ranges of at most ``max_entries`` entries (one longer row is a range of its own)."""
    num_rows, bounds, first = rowptr.shape[0] - 1, [], 0
    end = int(rowptr[-1])
    while first < num_rows:
        limit = min(int(rowptr[first]) + max(max_entries, 1), end)  # beyond, int32 may not hold it
        last = int(torch.searchsorted(rowptr, limit, right=True)) - 1
        last = min(max(last, first + 1), num_rows)
        bounds.append((first, last))
        first = last
    return bounds


def once(adjacency: Adjacency, key: Hashable, build: Callable[[], T]) -> T:
    """``build()``, remembered with the adjacency unless that is large; the result must not refer to the adjacency."""
    if adjacency.num_edges > REMEMBERED:
        return build()
    found = _derived.get(adjacency)
    if found is None:
        found = _derived.setdefault(adjacency, {})
    if key not in found:
        found[key] = build()
    return found[key]


def numbers_an_entry(heads: int) -> int:
    """Width of a form that has a number an entry and head: with several heads there is a pattern beside it."""
    return 2 * heads - 1


def _cut(adjacency: Adjacency, cuts: list[tuple[int, int]], heads: int, num_cols: int) -> Iterator[Chunk]:
    rowptr = adjacency.rowptr
    row = once(adjacency, "row", lambda: _rows(rowptr)) if adjacency.num_edges <= REMEMBERED else None
    wide = torch.int64 if max(num_cols, adjacency.num_rows) * heads >= INT32_LIMIT else rowptr.dtype
    for first, last in cuts:
        begin, end = int(rowptr[first]), int(rowptr[last])
        if begin == end:
            continue
        local = rowptr[first : last + 1] - begin
        of_entry = _rows(local).add_(first) if row is None else row[begin:end]
        col = adjacency.col[begin:end].to(rowptr.dtype)
        yield Chunk(first, last, begin, end, heads, local, col, of_entry, adjacency.edge, wide)


def _rows(rowptr: Tensor) -> Tensor:
    """Row of each entry, in the type of ``rowptr``."""
    row = torch.arange(rowptr.shape[0] - 1, dtype=rowptr.dtype)
    return row.repeat_interleave(rowptr.diff(), output_size=int(rowptr[-1]))


def _select(table: Tensor, index: Tensor) -> Tensor:
    if table.shape[0] == 1:
        return table[0].index_select(0, index).unsqueeze(0)
    return table.index_select(1, index)
