"""Rows in an order that loads every thread alike.

PyTorch's embedding bag gives each thread as many neighbouring rows as the others, whatever they hold. A graph that
keeps its hubs together (nine tenths of Flickr's entries lie in the first half of its rows) leaves all threads but one
waiting. Such a graph is summed from a copy of its rows in another order. A row is summed as before, so results keep
their bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ...adjacency import Adjacency
from ...bitblock import entries_of, exclusive_scan

BINS = 64
"""Rows are dealt, longest first, into so many equal heaps; a thread gets neighbouring heaps."""
LEAST_GAIN = 0.05
"""Share of the time that a balanced order must save beyond what putting the results back costs."""
PUT_BACK = 3.0
"""What moving a row of results costs, in rows of features read: it is written, read and written again."""

_BALANCED = WeakTensorKeyDictionary()


@dataclass(frozen=True, eq=False)
class Balanced:
    """The rows of an adjacency in a balanced order.

    Attributes:
        place: ``[num_rows]`` int64: where each row is.
        rowptr: ``[num_rows + 1]``: first entry at each place.
        col: ``[num_edges]``: column of each entry.
        entry: ``[num_edges]``: entry of the adjacency.
        edge: ``[num_edges]``: input edge of each entry.
    """

    place: Tensor
    rowptr: Tensor
    col: Tensor
    entry: Tensor
    edge: Tensor


def balanced(adjacency: Adjacency) -> Balanced | None:
    """The balanced rows for the threads of now, or ``None`` where that would gain too little; built once."""
    threads = torch.get_num_threads()
    key = "balanced", threads
    if key not in adjacency.decisions:
        adjacency.decisions[key] = _of_pattern(adjacency, threads)
    return adjacency.decisions[key]


def _of_pattern(adjacency: Adjacency, threads: int) -> Balanced | None:
    """Shared by the adjacencies of one pattern, which differ in their edge numbers."""
    by_threads = _BALANCED.get(adjacency.col)
    if by_threads is None:
        by_threads = _BALANCED[adjacency.col] = {}
    if threads not in by_threads:
        with torch.inference_mode(False):  # training may use what inference built
            by_threads[threads] = _build(adjacency) if gains(adjacency.rowptr, threads) else None
    built = by_threads[threads]
    if built is None or adjacency.edge.numel() == 0:
        return built
    edge = adjacency.edge.index_select(0, built.entry)
    return Balanced(built.place, built.rowptr, built.col, built.entry, edge)


def gains(rowptr: Tensor, threads: int) -> bool:
    """Whether dealing the rows anew saves more than it costs.

    Example:
        >>> hubs_first = torch.tensor([0, 450, 900, 901, 902])
        >>> gains(hubs_first, threads=2), gains(hubs_first, threads=1)
        (True, False)
    """
    num_rows, num_entries = rowptr.shape[0] - 1, int(rowptr[-1])
    if threads < 2 or num_entries == 0:
        return False
    cuts = torch.arange(0, num_rows + 1, -(-num_rows // threads))
    bounds = torch.cat([rowptr.index_select(0, cuts), rowptr[-1:]])
    heaviest, longest_row = int(bounds.diff().max()), int(rowptr.diff().max())
    saved = 1 - max(num_entries / threads, longest_row) / heaviest
    return saved > PUT_BACK * num_rows / num_entries + LEAST_GAIN


def _build(adjacency: Adjacency) -> Balanced:
    rowptr = adjacency.rowptr
    num_rows, counts = adjacency.num_rows, rowptr.diff()
    by_length = counts.sort(descending=True, stable=True)[1]
    position = torch.arange(num_rows)
    turn, heap = position // BINS, position % BINS
    heap = torch.where(turn % 2 == 0, heap, BINS - 1 - heap)  # there and back, so that heaps stay equal
    order = by_length.index_select(0, heap.sort(stable=True)[1])
    entry = entries_of(rowptr, order, adjacency.num_edges).to(rowptr.dtype)
    return Balanced(
        place=torch.empty_like(order).index_copy_(0, order, position),
        rowptr=exclusive_scan(counts.index_select(0, order)).to(rowptr.dtype),
        col=adjacency.col.index_select(0, entry),
        entry=entry,
        edge=entry,
    )
