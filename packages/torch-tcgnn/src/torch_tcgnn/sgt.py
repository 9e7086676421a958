"""Sparse graph translation in the terms of the TC-GNN paper, and the tile counts that decide whether it pays.

Wang et al., *TC-GNN*, USENIX ATC 2023, section 4.1 and algorithm 1. Rows are cut into windows of ``window`` rows; the
distinct columns of a window, ascending, become its *condensed* columns 0, 1, 2, …; every ``block`` of them fill one
tensor-core tile. The authors' system computes this with one ordered map a window on the CPU; here the windows of the
whole graph are translated at once by one sort of the keys ``window · num_cols + column``, on any device.

The operators of this package run on their own format (``bitblock``); this file is for reproducing the paper.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .graph_arguments import check_count, check_tensor


class SGT(NamedTuple):
    """The paper's metadata of one graph of ``N`` rows and ``E`` edges.

    Attributes:
        win_partition: ``[ceil(N / window)]`` int32: tiles of each window (``blockPartition`` in the authors' code).
        edge_to_column: ``[E]`` int32: condensed column of each edge inside its window.
        edge_to_row: ``[E]`` int32: row of each edge.

    Example:
        >>> translate(torch.tensor([0, 2, 3]), torch.tensor([5, 9, 9]), num_cols=10)._asdict()
        {'win_partition': tensor([1], dtype=torch.int32), 'edge_to_column': tensor([0, 1, 1], dtype=torch.int32),
         'edge_to_row': tensor([0, 0, 1], dtype=torch.int32)}
    """

    win_partition: Tensor
    edge_to_column: Tensor
    edge_to_row: Tensor


class TileCount(NamedTuple):
    """Tiles that a graph needs with and without translation.

    Attributes:
        greedy: tiles over the original columns; each starts at the smallest column of the window not yet covered.
        condensed: tiles over the condensed columns.
        density: share of the places of the condensed tiles that hold an entry, in ``[0, 1]``.

    Example:
        >>> before, after, density = count_tiles(torch.tensor([0, 2]), torch.tensor([0, 31]), 16, 8, num_cols=32)
        >>> f"{before} tiles become {after}, {100 * density:.1f} % full"
        '2 tiles become 1, 1.6 % full'
    """

    greedy: int
    condensed: int
    density: float


class WindowStats(NamedTuple):
    """What windows of a given height see of a graph.

    Attributes:
        nnz: distinct entries (duplicate edges count once).
        vectors: distinct (window, column) pairs: the rows of features that a tensor-core kernel gathers.
        blocks: tiles of eight condensed columns.
        density: ``nnz / (blocks · height · 8)``.

    Example:
        >>> stats = window_stats(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, 1]), 8)
        >>> stats.nnz / stats.vectors  # entries that one gathered row serves
        2.0
    """

    nnz: int
    vectors: int
    blocks: int
    density: float


def translate(rowptr: Tensor, col: Tensor, window: int = 16, block: int = 8, *, num_cols: int | None = None) -> SGT:
    """Translate compressed rows into the paper's metadata.

    Args:
        rowptr: ``[N + 1]`` int32 or int64, starting at 0, not decreasing, ending at ``E``.
        col: ``[E]`` int32 or int64, in any order inside a row, duplicates allowed.
        window: rows of a window.
        block: condensed columns of a tile.
        num_cols: columns of the matrix; default: as many as rows.

    Returns:
        :class:`SGT` on the device of ``col``. Any ``N``: the last window may be short, a window may be empty.

    Raises:
        TypeError: an index tensor that is not int32 or int64.
        ValueError: ``rowptr`` that is not a row pointer of ``col``, a column outside ``[0, num_cols)``, tensors on
            two devices, or a window or block below 1.

    Example:
        >>> rowptr = torch.tensor([0, 3] + [5] * 16 + [6] * 31)
        >>> col = torch.tensor([3, 3, 40, 7, 40, 0])
        >>> meta = translate(rowptr, col)
        >>> meta.win_partition.tolist(), meta.edge_to_column.tolist(), meta.edge_to_row.tolist()
        ([1, 1, 0], [0, 0, 2, 1, 2, 0], [0, 0, 0, 1, 1, 17])
    """
    num_cols = _checked(rowptr, col, num_cols, window=window, block=block)
    row = _rows(rowptr)
    num_windows = -(-(rowptr.shape[0] - 1) // window)
    key, order = (row // window * num_cols + col).sort()
    distinct, vector = torch.unique_consecutive(key, return_inverse=True)
    first = _window_starts(distinct, num_windows, num_cols)
    condensed = (vector - first.index_select(0, key // num_cols)).to(torch.int32)
    return SGT(
        win_partition=((first.diff() + (block - 1)) // block).to(torch.int32),
        edge_to_column=torch.empty_like(condensed).index_copy_(0, order, condensed),
        edge_to_row=row.to(torch.int32),
    )


def count_tiles(
    rowptr: Tensor, col: Tensor, height: int = 16, width: int = 8, *, num_cols: int | None = None
) -> TileCount:
    """Count the tiles of ``height × width`` before and after translation (the paper's tile-reduction table).

    Args:
        rowptr: ``[N + 1]`` int32 or int64 row pointer.
        col: ``[E]`` int32 or int64 columns.
        height: rows of a tile.
        width: columns of a tile.
        num_cols: columns of the matrix; default: as many as rows.

    Raises:
        TypeError, ValueError: as :func:`translate`.

    Example:
        >>> rowptr, col = torch.tensor([0, 3, 4]), torch.tensor([0, 7, 8, 31])
        >>> count_tiles(rowptr, col, 16, 8, num_cols=32)
        TileCount(greedy=3, condensed=1, density=0.03125)
    """
    num_cols = _checked(rowptr, col, num_cols, height=height, width=width)
    distinct, first, nnz = _condensed(rowptr, col, height, num_cols)
    condensed = int(((first.diff() + (width - 1)) // width).sum())
    return TileCount(
        greedy=_greedy(distinct, first, width),
        condensed=condensed,
        density=nnz / (condensed * height * width) if condensed else 0.0,
    )


def window_stats(rowptr: Tensor, col: Tensor, height: int = 8, *, num_cols: int | None = None) -> WindowStats:
    """Measure a graph in windows of ``height`` rows and tiles of eight condensed columns.

    Args:
        rowptr: ``[N + 1]`` int32 or int64 row pointer.
        col: ``[E]`` int32 or int64 columns.
        height: rows of a window.
        num_cols: columns of the matrix; default: as many as rows.

    Raises:
        TypeError, ValueError: as :func:`translate`.

    Example:
        >>> rowptr, col = torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, 1])
        >>> window_stats(rowptr, col, 8)
        WindowStats(nnz=4, vectors=2, blocks=1, density=0.0625)
    """
    num_cols = _checked(rowptr, col, num_cols, height=height)
    distinct, first, nnz = _condensed(rowptr, col, height, num_cols)
    blocks = int(((first.diff() + 7) // 8).sum())
    return WindowStats(nnz, distinct.shape[0], blocks, nnz / (blocks * height * 8) if blocks else 0.0)


def _condensed(rowptr: Tensor, col: Tensor, height: int, num_cols: int) -> tuple[Tensor, Tensor, int]:
    """Distinct (window, column) keys, the first key of each window, and the number of distinct entries."""
    row = _rows(rowptr)
    distinct = _distinct(row // height * num_cols + col)
    first = _window_starts(distinct, -(-(rowptr.shape[0] - 1) // height), num_cols)
    return distinct, first, _distinct(row * num_cols + col).shape[0]


def _rows(rowptr: Tensor) -> Tensor:
    """``[E]`` int64: row of each edge."""
    ids = torch.arange(rowptr.shape[0] - 1, device=rowptr.device)
    return ids.repeat_interleave(rowptr.long().diff())


def _distinct(key: Tensor) -> Tensor:
    """Distinct keys, ascending; already ascending keys are not sorted again."""
    if not bool((key[1:] >= key[:-1]).all()):
        key = key.sort()[0]
    return torch.unique_consecutive(key)


def _window_starts(distinct: Tensor, num_windows: int, num_cols: int) -> Tensor:
    """``[num_windows + 1]`` int64: first distinct key of each window; window ``w`` owns keys from ``w · num_cols``."""
    return torch.searchsorted(distinct, torch.arange(num_windows + 1, device=distinct.device) * num_cols)


def _greedy(distinct: Tensor, first: Tensor, width: int) -> int:
    """Greedy tiles of all windows, by list ranking.

    The tile that starts at key ``k`` is followed by the one that starts at the first key ≥ ``k + width``: a linked
    list over the keys of a window. Pointer doubling gives the length of the list from every key in
    ``log2(longest list)`` rounds over all windows, where a walk takes as many steps as the longest window has tiles.
    """
    num_keys, per_window = distinct.shape[0], first.diff()
    if num_keys == 0:
        return 0
    last = first[1:].repeat_interleave(per_window)
    follower = torch.searchsorted(distinct, distinct + width)
    follower = torch.where(follower < last, follower, num_keys)  # num_keys: end of the list
    follower = torch.cat([follower, follower.new_tensor([num_keys])])
    length = torch.ones_like(follower)
    length[num_keys] = 0
    for _ in range(int(per_window.max()).bit_length()):
        length = length + length[follower]
        follower = follower[follower]
    return int(length[first[:-1][per_window > 0]].sum())


def _checked(rowptr: Tensor, col: Tensor, num_cols: int | None, **sizes: int) -> int:
    """Raise on anything that is not a compressed-row matrix; return its number of columns (at least 1)."""
    for name, value in sizes.items():
        check_count(name, value, least=1)
    if num_cols is not None:
        check_count("num_cols", num_cols, least=0)
    for name, index in (("rowptr", rowptr), ("col", col)):
        check_tensor(name, index)
        if index.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name} must be int32 or int64, got {index.dtype}")
        if index.dim() != 1:
            raise ValueError(f"{name} must have one dimension, got shape {tuple(index.shape)}")
    if rowptr.device != col.device:
        raise ValueError(f"rowptr and col must be on one device, got {rowptr.device} and {col.device}")
    if rowptr.shape[0] == 0:
        raise ValueError("rowptr must have num_rows + 1 entries, got 0")
    if int(rowptr[0]) != 0:
        raise ValueError(f"rowptr must start at 0, got {int(rowptr[0])}")
    falls = (rowptr[1:] < rowptr[:-1]).nonzero()
    if falls.numel():
        at = int(falls[0])
        pair = rowptr[at : at + 2].tolist()
        raise ValueError(f"rowptr must not decrease, got {pair[0]} followed by {pair[1]} at row {at}")
    if int(rowptr[-1]) != col.shape[0]:
        raise ValueError(f"rowptr must end at the length of col, {col.shape[0]}, got {int(rowptr[-1])}")
    num_cols = rowptr.shape[0] - 1 if num_cols is None else num_cols
    outside = ((col < 0) | (col >= num_cols)).nonzero()
    if outside.numel():
        at = int(outside[0])
        raise ValueError(f"col must lie in [0, {num_cols}), got {int(col[at])} at edge {at}")
    return max(num_cols, 1)
