"""Gradients of captured tensors: what the scores of a tile add to them, summed as far as possible before it is added.

A tile's values are summed over the dimensions that no index depends on. Where indices are constant along diagonals
(tables of relative positions, buckets of distances) the diagonals are summed first; where they are consecutive in
separate dimensions (a bias for every pair) the values are added to a box of the gradient. Only what remains is added
element by element. All in a fixed order: two runs give equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from .read import box

ROWS, KEYS = 4, 5
"""Dimensions of a tile ``[key batch, key heads, copies, group, rows, keys]``."""


class CaptureGradient:
    """The gradient of one captured tensor.

    Attributes:
        total: what has been added so far, in float32 (float64, if anything is).
    """

    def __init__(self, capture: Tensor, dtype: torch.dtype) -> None:
        self._dtype = capture.dtype
        wide = torch.float64 in (dtype, capture.dtype)
        self.total = torch.zeros(capture.shape, dtype=torch.float64 if wide else torch.float32)

    def result(self) -> Tensor:
        return self.total.to(self._dtype)

    def add(
        self, indices: Sequence[Tensor], values: Tensor, pieces: Sequence[tuple[int, int]], visible: Tensor | None
    ) -> None:
        """Add the values of a tile.

        Args:
            indices: one a dimension of the captured tensor, of shapes that broadcast to the tile.
            values: ``[key batch, key heads, copies, group, rows, keys]``.
            pieces: stretches of consecutive keys.
            visible: where values count; ``None``: all that count not are 0.
        """
        if self.total.numel() == 0:
            return
        if visible is not None:
            values = torch.where(visible, values, 0)
        places = [i[(None,) * (6 - i.dim())].long() for i in indices]
        at = 0
        for start, stop in pieces if len(pieces) > 1 else [(0, values.shape[KEYS])]:
            width = stop - start
            parts = [p.narrow(KEYS, at, width) if p.shape[KEYS] > 1 else p for p in places]
            self._add(parts, values.narrow(KEYS, at, width))
            at += width

    def _add(self, places: list[Tensor], values: Tensor) -> None:
        for d, (size, place) in enumerate(zip(self.total.shape, places)):
            low, high = (int(x) for x in place.aminmax())
            if low < 0 or high >= size:
                wrapped = torch.where(place < 0, place + size, place)
                outside = (wrapped < 0) | (wrapped >= size)
                values = torch.where(outside, 0, values)
                places[d] = torch.where(outside, 0, wrapped)
        used = [any(p.shape[d] > 1 for p in places) for d in range(6)]
        idle = [d for d in range(6) if not used[d] and values.shape[d] > 1]
        values = (values.sum(idle, keepdim=True) if idle else values).to(self.total.dtype)
        place = box(self.total, places) if places else None
        if place is not None:
            place += values
            return
        if used[ROWS] and used[KEYS]:
            places, values = _sum_diagonals(places, values)
        linear = torch.zeros((1,) * values.dim(), dtype=torch.int64)
        for place, size in zip(places, self.total.shape):
            linear = linear * size + place
        place, value = linear.expand(values.shape).reshape(-1), values.reshape(-1)
        if value.is_cuda:  # sorted by place, where scatter_add_ adds in any order
            self.total.view(-1).index_put_((place,), value, accumulate=True)
        else:
            self.total.view(-1).scatter_add_(0, place, value)


def _sum_diagonals(places: list[Tensor], values: Tensor) -> tuple[list[Tensor], Tensor]:
    """Indices and sums of diagonals, in the last dimension, if all indices are constant along them; else no change."""
    rows, keys = values.shape[ROWS:]
    for p in places:
        if p.shape[ROWS:] == (1, 1):
            continue
        if p.shape[ROWS:] != (rows, keys) or not torch.equal(p[..., 1:, 1:], p[..., :-1, :-1]):
            return places, values
    # Row r of a tile whose rows are one longer than its width of diagonals lies r places to the right: a column is a
    # diagonal then.
    skewed = pad(values.flip(ROWS), (0, rows)).flatten(ROWS)[..., :-rows]
    sums = skewed.unflatten(-1, (rows, rows + keys - 1)).sum(ROWS, keepdim=True)
    along = [
        p if p.shape[ROWS:] == (1, 1) else torch.cat([p[..., 0].flip(-1), p[..., 0, 1:]], -1).unsqueeze(ROWS)
        for p in places
    ]
    return along, sums
