"""What depends on one index, evaluated at all its values and summarised for boxes of every level.

Level 0 are the blocks; a box of a level is a row of neighbouring boxes of the level below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..evaluate import evaluator
from ..mods import MaskMod
from .geometry import Geometry, counted
from .interval import Range, Truth, Value
from .sides import Side, Sides


@dataclass(frozen=True)
class Axis:
    """One direction of a mask, cut into boxes.

    Attributes:
        length: positions.
        block: positions of a block.
        factors: boxes of a level in one of the level above, from level 0 up.
    """

    length: int
    block: int
    factors: tuple[int, ...]

    def size(self, level: int) -> int:
        """Blocks in a box, along this direction."""
        return math.prod(self.factors[:level])

    def boxes(self, level: int) -> int:
        """Boxes of a level."""
        return -(-self.length // (self.block * self.size(level)))

    @property
    def padded(self) -> int:
        """Positions of the boxes of the highest level."""
        top = len(self.factors)
        return self.boxes(top) * self.size(top) * self.block


def axes(geometry: Geometry, factors: tuple[int, ...]) -> tuple[Axis, Axis]:
    """Both directions of a mask."""
    queries, keys = (Axis(n, b, factors) for n, b in zip(geometry.shape[2:], geometry.block))
    return queries, keys


@dataclass(frozen=True)
class Pyramid:
    """One node: its range in each box.

    Attributes:
        levels: by level, low and high ``[planes or 1, boxes]``, with as many boxes as fill the highest level; int64,
            bool (all True, any True) or floating-point.
        values: ``[planes or 1, positions]``, as many as fill the boxes of the highest level.
    """

    levels: tuple[tuple[Tensor, Tensor], ...]
    values: Tensor

    def value(self, level: int, plane: Tensor | None, box: Tensor | None, factor: int) -> Value:
        """The range in all children of boxes, ``[n, factor]``; in all boxes of a level where ``box`` is ``None``."""
        low, high = self.levels[level]
        if box is not None:
            above = low.shape[1] // factor
            at = box if low.shape[0] == 1 or plane is None else torch.add(box, plane, alpha=above)
            low, high = (x.view(-1, factor).index_select(0, at) for x in (low, high))
        return Truth(high, ~low) if self.values.dtype == torch.bool else Range(low, high)

    def extremes(self, plane: Tensor, box: Tensor, block: int) -> list[Tensor]:
        """Where in blocks the least and the greatest value is: two int64 ``[n]``."""
        values = self.values.view(-1, block)
        at = box if self.values.shape[0] == 1 else torch.add(box, plane, alpha=self.values.shape[1] // block)
        values = values.index_select(0, at)
        values = values.to(torch.uint8) if values.dtype == torch.bool else values
        return [values.argmin(1), values.argmax(1)]


def pyramids(
    mod: MaskMod, sides: Sides, side: Side, axis: Axis, geometry: Geometry, planes: Tensor
) -> tuple[dict[int, Pyramid], Tensor | None]:
    """The pyramids of the outer nodes of ``"q"`` or ``"kv"``, by node.

    Args:
        mod: the mask.
        sides: its division.
        side: which.
        axis: the boxes.
        geometry: the blocks.
        planes: ``[n]``, the batches and heads that are looked at.

    Returns:
        Them, and where a captured tensor was read out of range (``None``: nowhere).
    """
    if side not in sides.outer:
        return {}, None
    position = counted(axis.padded, 1, axis.length - 1, torch.int32, geometry.device)
    inputs = {side: position}
    if all(sides.is_plain_read(node, mod.captures) for node in sides.outer[side]):
        tables = (mod.captures[int(sides.program.nodes[node].value or 0)] for node in sides.outer[side])
        values = {node: _as_far(table, position) for node, table in zip(sides.outer[side], tables)}
        return {node: _pyramid(value[None], axis) for node, value in values.items()}, None
    program = sides.outer_program(side)
    if program.depends_on & {"b", "h"}:
        inputs |= {name: index[:, 0] for name, index in geometry.batch_and_head(planes).items()}
    results, bad = evaluator(program)(inputs, mod.captures, mod.scalars)
    return {
        node: _pyramid(result.reshape(-1, axis.padded), axis)
        for node, result in zip(sides.outer[side], results, strict=True)
    }, bad


def _as_far(table: Tensor, position: Tensor) -> Tensor:
    """A captured tensor at positions that count up."""
    return table if table.shape[0] == position.shape[0] else table.index_select(0, position)


def plane_values(
    mod: MaskMod, sides: Sides, geometry: Geometry, planes: Tensor
) -> tuple[dict[int, Tensor], Tensor | None]:
    """The outer nodes that depend on batch and head at most, ``[planes or 1]`` each; and as :func:`pyramids`."""
    if "plane" not in sides.outer:
        return {}, None
    program = sides.outer_program("plane")
    inputs = {name: index[:, 0, 0] for name, index in geometry.batch_and_head(planes).items()}
    results, bad = evaluator(program)(inputs, mod.captures, mod.scalars)
    return {node: result.reshape(-1) for node, result in zip(sides.outer["plane"], results, strict=True)}, bad


def _pyramid(values: Tensor, axis: Axis) -> Pyramid:
    whole = not values.is_floating_point() and values.dtype != torch.bool
    low = high = values.long() if whole else values
    levels: list[tuple[Tensor, Tensor]] = []
    for size in (axis.block, *axis.factors):
        low, high = _least_and_greatest(low, high, size)
        levels.append((low, high))
    return Pyramid(tuple(levels), values)


def _least_and_greatest(low: Tensor, high: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Of neighbours taken together by ``size``."""
    grouped = low.unflatten(1, (-1, size))
    if low.dtype == torch.bool:
        return grouped.all(2), high.unflatten(1, (-1, size)).any(2)
    if low is high:
        least, greatest = grouped.aminmax(dim=2)
        return least, greatest
    return grouped.amin(2), high.unflatten(1, (-1, size)).amax(2)


def gathered(values: Sequence[Tensor], plane: Tensor) -> list[Tensor]:
    """Values of planes ``[planes or 1]`` for boxes in them, ``[n or 1, 1, 1]``."""
    return [(v if v.shape[0] == 1 else v.index_select(0, plane))[:, None, None] for v in values]
