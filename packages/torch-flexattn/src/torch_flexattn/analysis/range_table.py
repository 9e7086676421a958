"""Least and greatest entry of a captured tensor between any two indices.

Entries are taken together by sixteen, and of those groups every stretch of 1, 2, 4, … groups is kept, so that any range
is two stretches that may overlap. Ranges are widened to whole groups. Memory: about one tensor more for 2¹⁶ entries.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP_BITS = 4


class RangeTable:
    """Built once a tensor.

    Args:
        tensor: ``[..., size]``, size ≥ 1, of any real dtype; NaN makes the ranges that hold it NaN.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.size = tensor.shape[-1]
        values = tensor.detach().reshape(-1, self.size)
        groups = (self.size + (1 << GROUP_BITS) - 1) >> GROUP_BITS
        missing = (groups << GROUP_BITS) - self.size
        if missing:
            values = torch.cat([values, values[:, -1:].expand(-1, missing)], dim=1)
        values = values.unflatten(1, (groups, 1 << GROUP_BITS))
        low, high = values.amin(2), values.amax(2)
        if not low.is_floating_point():
            low, high = low.long(), high.long()
        levels = [torch.stack([low, -high])]  # [2, rows, groups]: of both, the least
        while 2 << (len(levels) - 1) <= groups:
            step = 1 << (len(levels) - 1)
            level = levels[-1].clone()
            torch.minimum(levels[-1][..., :-step], levels[-1][..., step:], out=level[..., :-step])
            levels.append(level)
        self._levels = torch.stack(levels).movedim(1, 0).flatten(1)  # [2, levels · rows · groups]
        self._rows, self._groups = values.shape[0], groups

    def between(self, low: Tensor, high: Tensor, row: Tensor | int = 0) -> tuple[Tensor, Tensor]:
        """The least and the greatest entry with an index from ``low`` to ``high``.

        Args:
            low: int64, from 0 to size − 1.
            high: int64, from ``low`` to size − 1.
            row: which row of the tensor, its leading dimensions taken as one.
        """
        first, last = low >> GROUP_BITS, high >> GROUP_BITS
        level = torch.frexp((last - first + 1).double()).exponent.long() - 1
        start = (level * self._rows + row) * self._groups
        ends = torch.minimum(self._levels[:, start + first], self._levels[:, start + last + 1 - (1 << level)])
        return ends[0], -ends[1]
