"""What the windows of a pattern hold, counted without building their blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from .adjacency import Adjacency
from .bitblock import first_of_run


def vectors_per_window(
    adjacency: Adjacency, num_cols: int, *, height: int = 8, row_order: Tensor | None = None
) -> Tensor:
    """``[ceil(num_rows / height)]`` int64: distinct columns of each window.

    Args:
        adjacency: the pattern.
        num_cols: its columns.
        height: rows of a window.
        row_order: ``[num_rows]`` integer permutation: which rows share a window; default: neighbours do.
    """
    row, stride = adjacency.rows(), max(num_cols, 1)
    if row_order is not None:
        place = torch.empty_like(row_order, dtype=torch.int64)
        place[row_order.long()] = torch.arange(row_order.shape[0], device=row.device)
        row = place[row]
    key = (row // height * stride + adjacency.col).sort()[0]
    window = key[first_of_run(key)] // stride
    return torch.bincount(window, minlength=-(-adjacency.num_rows // height))


def entries_per_window(adjacency: Adjacency, *, height: int = 8, row_order: Tensor | None = None) -> Tensor:
    """``[ceil(num_rows / height)]`` int64: entries of each window, duplicates counted; arguments as above."""
    length = adjacency.rowptr.long().diff()
    if row_order is not None:
        length = length[row_order.long()]
    padded = torch.nn.functional.pad(length, (0, -length.shape[0] % height))
    return padded.view(-1, height).sum(1)
