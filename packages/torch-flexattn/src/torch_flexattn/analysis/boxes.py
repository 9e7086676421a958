"""A mask on boxes of positions: which can be visible, which can be hidden."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..mods import MaskMod
from .geometry import Blocks, Geometry, counted, kept
from .interval import Range, Truth, Value, run, wrapped
from .pyramid import Axis, Pyramid, gathered, plane_values, pyramids
from .reads import Reads
from .sides import Sides


class Boxes:
    """A mask ready to be run on the boxes of some batches and heads.

    Args:
        mod: the mask.
        sides: its division.
        geometry: the blocks.
        axes: boxes along queries and keys.
        planes: ``[n]`` int64: batches and heads; boxes name them by their place here.
    """

    def __init__(self, mod: MaskMod, sides: Sides, geometry: Geometry, axes: tuple[Axis, Axis], planes: Tensor) -> None:
        self._sides, self._axes = sides, axes
        self._planes, self._device = planes.shape[0], geometry.device
        rows, bad_rows = pyramids(mod, sides, "q", axes[0], geometry, planes)
        columns, bad_columns = pyramids(mod, sides, "kv", axes[1], geometry, planes)
        self._outer: tuple[dict[int, Pyramid], dict[int, Pyramid]] = (rows, columns)
        self._plane_values, bad_planes = plane_values(mod, sides, geometry, planes)
        self._reads = Reads(mod, sides, geometry.device)
        self._bad = [bad for bad in (bad_rows, bad_columns, bad_planes) if bad is not None]

    def hints(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """Where the mask may turn in blocks: at corners, and where what depends on one side is least and greatest.

        Returns:
            Queries and keys by their place in the block, int64 ``[n, rows]`` and ``[n, columns]``.
        """
        found = []
        for axis, of, box in zip(self._axes, self._outer, (blocks.row, blocks.column)):
            corners = [torch.full_like(box, place) for place in (0, axis.block - 1)]
            extremes = [place for pyramid in of.values() for place in pyramid.extremes(blocks.plane, box, axis.block)]
            found.append(torch.stack(corners + extremes, dim=1))
        return found[0], found[1]

    @property
    def has_hints(self) -> bool:
        """Whether :meth:`hints` gives more than corners."""
        return any(self._outer)

    @property
    def reads_outside(self) -> bool:
        """Whether some position may read a captured tensor out of range."""
        return self._reads.may_be_outside() or any(bool(bad.any()) for bad in self._bad)

    def run(self, level: int, parents: Blocks | None) -> Truth:
        """The mask on the children of boxes.

        Args:
            level: of the children.
            parents: boxes of the level above; ``None``: all of the highest level are the children.

        Returns:
            Tensors that broadcast to ``[n, rows, columns]`` of children, or Python bools. Children past the end of the
            mask get what the last position has.
        """
        sides = self._sides
        values: dict[int, Value] = dict(enumerate(sides.known))
        self._outer_values(values, level, parents)
        at = {"q": 0, "kv": 1}
        for number in sides.inner:
            node = sides.program.nodes[number]
            if node.op in at:
                values[number] = self._positions(at[node.op], level, parents)
                continue
            args = [values[a] for a in node.args]
            value = self._reads.run(number, args) if node.op == "gather" else run(node, args)
            values[number] = wrapped(node, args, value) if number in sides.wraps else value
        result = values[sides.program.output]
        assert isinstance(result, Truth)
        return result

    def _outer_values(self, values: dict[int, Value], level: int, parents: Blocks | None) -> None:
        for direction, of in enumerate(self._outer):
            box = None if parents is None else (parents.row, parents.column)[direction]
            plane = None if parents is None else parents.plane
            for number, pyramid in of.items():
                value = pyramid.value(
                    level, plane, box, self._axes[direction].factors[level] if parents is not None else 0
                )
                values[number] = _map(value, lambda x, to=2 - direction: x.unsqueeze(to))
        for number, value in self._plane_values.items():
            plane = torch.arange(self._planes, device=value.device) if parents is None else parents.plane
            (point,) = gathered([value], plane)
            if point.dtype == torch.bool:
                values[number] = Truth(point, ~point)
            else:
                point = point if point.is_floating_point() else point.long()
                values[number] = Range(point, point)

    def _positions(self, direction: int, level: int, parents: Blocks | None) -> Range:
        """Of the children, ``[n, rows, 1]`` or ``[n, 1, columns]``."""
        axis = self._axes[direction]
        if parents is None:
            return self._all_positions(direction, level)
        size, factor = axis.block * axis.size(level), axis.factors[level]
        inside = torch.arange(0, factor * size, size, device=self._device)
        first = torch.add(inside, (parents.row, parents.column)[direction][:, None], alpha=factor * size)
        last = first + (size - 1)
        if axis.padded > axis.length:
            first, last = first.clamp(max=axis.length - 1), last.clamp_(max=axis.length - 1)
        return Range(first.unsqueeze(2 - direction), last.unsqueeze(2 - direction))

    def _all_positions(self, direction: int, level: int) -> Range:
        """Of all boxes of a level."""
        axis = self._axes[direction]
        size, boxes, end = axis.block * axis.size(level), axis.boxes(level), axis.length - 1
        first = counted(boxes, size, end, torch.int64, self._device)
        last = kept(("last", boxes, size, end, self._device), lambda: (first + (size - 1)).clamp_(max=end))
        shape = (1, -1, 1) if direction == 0 else (1, 1, -1)
        return Range(first.view(shape), last.view(shape))


def _map(value: Any, change: Callable[[Any], Tensor]) -> Value:
    if isinstance(value, Truth):
        return Truth(change(value.can_be_true), change(value.can_be_false))
    return Range(change(value.low), change(value.high))
