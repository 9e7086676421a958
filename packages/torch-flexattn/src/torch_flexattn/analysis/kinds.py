"""Masks of few enough blocks that the kinds of all of them are held at once: one byte each, in the order of places.

Behind every row of blocks, and before the first, stands one that is hidden; so where the kind changes from one place to
the next a run begins or ends, and runs come out whole and in order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..runs import FULL
from .geometry import Blocks, Geometry


class Kinds:
    """The blocks of some planes, all hidden at first.

    Args:
        geometry: the blocks.
        first: plane, and ``last``: the plane after the last.
    """

    def __init__(self, geometry: Geometry, first: int, last: int) -> None:
        self._geometry, self._first = geometry, first
        self._rows, self._width = geometry.rows, geometry.columns + 1
        places = (last - first) * self._rows * self._width
        self._line = torch.zeros(1 + places, dtype=torch.int8, device=geometry.device)

    def mark_full(self, full: Tensor) -> None:
        """Blocks that are wholly visible, bool ``[planes, rows, columns]``; the others are hidden."""
        places = self._line[1:].view(-1, self._rows, self._width)[:, :, :-1]
        torch.mul(full, FULL, out=places)

    def mark(self, blocks: Blocks, some: Tensor, every: Tensor) -> None:
        """Blocks of which some positions are visible, or every one, bool ``[n]``; planes count from ``first``."""
        row = blocks.row if self._geometry.planes == 1 else torch.add(blocks.row, blocks.plane, alpha=self._rows)
        place = torch.add(blocks.column, row, alpha=self._width)
        self._line[1:].scatter_(0, place, some.to(torch.int8).add_(every))

    def runs(self) -> Tensor:
        """All runs, as stretches (see :func:`torch_flexattn.runs.stretches`) in their order, int64 ``[n, 2]``."""
        edges = (self._line[1:] != self._line[:-1]).nonzero().squeeze(1)
        if not edges.shape[0]:
            return edges.new_empty(0, 2)
        kind = self._line[1:].index_select(0, edges[:-1])  # the last edge is the end of a run
        opening = kind.nonzero().squeeze(1)
        ends = edges.unfold(0, 2, 1).index_select(0, opening)
        if self._first:
            ends = ends + self._first * self._rows * self._width
        return torch.add(kind.index_select(0, opening)[:, None] - 1, ends, alpha=2)
