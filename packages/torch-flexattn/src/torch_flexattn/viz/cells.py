"""A picture before it is drawn: a grid of cells, each with a colour and a character, and what is written around it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Colour = tuple[int, int, int]
"""Red, green and blue, from 0 to 255."""


@dataclass(frozen=True)
class Key:
    """One entry of the legend of a coloured picture.

    Attributes:
        colour: of cells.
        meaning: in words.
    """

    colour: Colour
    meaning: str


@dataclass(frozen=True, eq=False)
class Cells:
    """What the printers of text, PNG and SVG draw. Queries run down, keys to the right.

    Attributes:
        title: what is shown.
        colours: uint8 ``[rows, columns, 3]``, on the CPU.
        characters: a line a row, a character a cell.
        size: queries and keys of the whole.
        cell: queries and keys of a cell; the last row and column may have fewer.
        keys: the legend of the colours.
        legend: that of the characters.
        notes: lines of statistics.
    """

    title: str
    colours: Tensor
    characters: tuple[str, ...]
    size: tuple[int, int]
    cell: tuple[int, int]
    keys: tuple[Key, ...]
    legend: str
    notes: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Cells downwards."""
        return self.colours.shape[0]

    @property
    def columns(self) -> int:
        """Cells to the right."""
        return self.colours.shape[1]


def steps(length: int, most: int) -> int:
    """How many things go into a cell, so that there are at most ``most`` cells.

    Example:
        >>> steps(16, 32), steps(100, 32)
        (1, 4)
    """
    return max(1, -(-length // most))


def pooled(values: Tensor, down: int, right: int) -> Tensor:
    """Sums over cells.

    Args:
        values: ``[rows, columns]``.
        down: rows of a cell.
        right: columns of a cell.

    Returns:
        ``[⌈rows / down⌉, ⌈columns / right⌉]``, int64 for integers.

    Example:
        >>> pooled(torch.ones(3, 4, dtype=torch.int64), 2, 2)
        tensor([[4, 4],
                [2, 2]])
    """
    rows, columns = values.shape
    padded = torch.nn.functional.pad(values, (0, -columns % right, 0, -rows % down))
    return padded.reshape(-(-rows // down), down, -(-columns // right), right).sum((1, 3))


def chosen(characters: str, index: Tensor) -> tuple[str, ...]:
    """A line a row of ``index`` ``[rows, columns]``, which says which of ``characters`` each cell has."""
    return tuple("".join(characters[i] for i in row) for row in index.tolist())
