"""How many entries of a captured table of bools are True in any rectangle of it: all, none, or some.

The summed-area table of Crow (SIGGRAPH 1984): four reads a rectangle, whatever its size.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 1 << 22
"""Entries of tables that are summed; larger ones cost more memory than they save time."""


class CountTable:
    """Built once a tensor.

    Args:
        tensor: bool ``[..., rows, columns]``, at most :data:`LARGEST` entries.
    """

    def __init__(self, tensor: Tensor) -> None:
        *_, rows, columns = tensor.shape
        sums = torch.zeros(
            tensor.numel() // (rows * columns), rows + 1, columns + 1, dtype=torch.int32, device=tensor.device
        )
        sums[:, 1:, 1:] = tensor.reshape(-1, rows, columns).cumsum(1, dtype=torch.int32).cumsum(2)
        self._sums = sums.flatten()
        self._height, self._width = rows + 1, columns + 1

    def between(
        self, row: tuple[Tensor, Tensor], column: tuple[Tensor, Tensor], plane: Tensor | int = 0
    ) -> tuple[Tensor, Tensor]:
        """Whether any and whether all entries of rectangles are True.

        Args:
            row: first and last row, int64, of shapes that broadcast with all others.
            column: first and last column.
            plane: which table, the leading dimensions taken as one.
        """
        above, below = ((plane * self._height + r) * self._width for r in (row[0], row[1] + 1))
        left, right = column[0], column[1] + 1
        sums = self._sums
        found = sums[below + right] - sums[above + right] - sums[below + left] + sums[above + left]
        return found > 0, found == (row[1] - row[0] + 1) * (column[1] - column[0] + 1)
