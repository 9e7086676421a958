"""From large boxes down to blocks: boxes that are wholly visible or wholly hidden are kept, the others are split.

A whole level is evaluated at once. What comes out are stretches (see ``runs``): of one row of blocks, neighbouring
columns of one kind.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..mods import MaskMod
from ..runs import NOWHERE, stretches
from .alike import as_tensor
from .boxes import Boxes
from .exact_tiles import look, settle
from .geometry import Blocks, Geometry, constant
from .pyramid import axes
from .sides import divide

FIRST = {"cpu": 1 << 18, "cuda": 1 << 20}
"""Most boxes of the highest level: a GPU takes longer to be told of a level than to look at a million boxes."""
AT_A_TIME = 1 << 20
"""Boxes that are evaluated at once."""
PLANE_VALUES = 1 << 21
"""Values of one node over all batches and heads that are held at once."""
SPLIT_BITS = 4
"""A box is split in up to 2⁴ along each direction."""


def classify(mod: MaskMod, geometry: Geometry, *, check: bool = False) -> tuple[list[Tensor], bool]:
    """All stretches of a mask of which no length is 0.

    Returns:
        Pieces ``[n, 2]`` int64 (see :func:`torch_flexattn.runs.stretches`), in no order, and, with ``check``, whether
        captured tensors may be read out of range (else False).
    """
    search = _Search(mod, geometry)
    outside = False
    step = max(1, min(geometry.planes, first_of(geometry), PLANE_VALUES // max(geometry.shape[2:])))
    for first in range(0, geometry.planes, step):
        outside |= search.run(first, min(first + step, geometry.planes), check)
    return search.found, outside


def classify_exactly(mod: MaskMod, geometry: Geometry) -> list[Tensor]:
    """The same from every position of every block."""
    number = torch.arange(geometry.planes * geometry.rows * geometry.columns, device=geometry.device)
    row = number // geometry.columns
    blocks = Blocks.at(row // geometry.rows, row % geometry.rows, number % geometry.columns)
    return [of_blocks(geometry, blocks, *look(mod, geometry, blocks))]


def of_blocks(geometry: Geometry, blocks: Blocks, some: Tensor, every: Tensor) -> Tensor:
    """Stretches of single blocks of which some positions are visible, or every one."""
    row = blocks.row if geometry.planes == 1 else torch.add(blocks.row, blocks.plane, alpha=geometry.rows)
    ends = blocks.column[:, None] + constant((0, 1), geometry.device)
    return stretches(geometry.columns, row[:, None], ends, every[:, None]).masked_fill_(~some[:, None], NOWHERE)


class _Search:
    def __init__(self, mod: MaskMod, geometry: Geometry) -> None:
        self._mod, self._geometry = mod, geometry
        self._sides = divide(mod.program, mod.scalars, geometry.shape)
        self.found: list[Tensor] = []

    def run(self, first: int, last: int, check: bool) -> bool:
        """Planes from ``first`` to before ``last``."""
        geometry = self._geometry
        factors = _factors(last - first, geometry)
        self._axes = axes(geometry, factors)
        planes = torch.arange(first, last, device=geometry.device)
        self._first_plane = first
        self._boxes = Boxes(self._mod, self._sides, geometry, self._axes, planes)
        rows, columns = (axis.boxes(len(factors)) for axis in self._axes)
        self._look(len(factors), None, (last - first, rows, columns))
        return check and self._boxes.reads_outside

    def _look(self, level: int, parents: Blocks | None, shape: tuple[int, int, int]) -> None:
        """The children of boxes, ``shape`` of them; and theirs, down to blocks."""
        full, unsettled = self._kinds(level, parents, shape)
        self._keep(level, parents, full)
        found = unsettled.nonzero()
        if not found.shape[0]:
            return
        children = Blocks(found)
        if parents is not None:
            children = parents.chosen(found[:, 0])
            children.places[:, 1:].mul_(shape[1]).add_(found[:, 1:])
        if level == 0:
            self._settle(children)
            return
        factor = self._axes[0].factors[level - 1]
        step = max(1, AT_A_TIME // factor**2)
        for start in range(0, len(children), step):
            part = children if step >= len(children) else children.part(start, start + step)
            self._look(level - 1, part, (len(part), factor, factor))

    def _settle(self, blocks: Blocks) -> None:
        """Blocks that ranges leave open."""
        first = self._first_plane
        if first:
            blocks.plane.add_(first)

        def hints(of: Blocks) -> tuple[Tensor, Tensor]:
            return self._boxes.hints(Blocks.at(of.plane - first, of.row, of.column))

        found = settle(self._mod, self._geometry, blocks, hints if self._boxes.has_hints else None)
        self.found.append(of_blocks(self._geometry, blocks, *found))

    def _kinds(self, level: int, parents: Blocks | None, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
        """Which boxes are wholly visible and which may be either; boxes past the end are neither."""
        truth = self._boxes.run(level, parents)
        true, false = (as_tensor(x, self._geometry.device) for x in (truth.can_be_true, truth.can_be_false))
        full, unsettled = (~false).expand(shape), (true & false).expand(shape)
        for direction, axis in enumerate(self._axes):
            if parents is not None and axis.boxes(level) % shape[1]:
                first = parents.places[:, 1 + direction, None] * shape[1]
                inside = first + torch.arange(shape[1], device=first.device) < axis.boxes(level)
                full, unsettled = (x & inside.unsqueeze(2 - direction) for x in (full, unsettled))
        return full, unsettled

    def _keep(self, level: int, parents: Blocks | None, full: Tensor) -> None:
        """Stretches of boxes that are wholly visible, in every row of blocks that they cover."""
        geometry = self._geometry
        padded = full.new_zeros(*full.shape[:2], full.shape[2] + 2)
        padded[:, :, 1:-1] = full
        edges = (padded[:, :, 1:] != padded[:, :, :-1]).nonzero()
        if not edges.shape[0]:
            return
        ends, at = edges[:, 2].view(-1, 2), edges[::2]
        plane, row = at[:, 0], at[:, 1]
        if parents is not None:
            above = parents.chosen(plane)
            ends, row = (
                torch.add(ends, above.column[:, None], alpha=full.shape[2]),
                torch.add(row, above.row, alpha=full.shape[1]),
            )
            plane = above.plane
        rows, columns = (axis.size(level) for axis in self._axes)
        if columns > 1:
            ends = (ends * columns).clamp_(max=geometry.columns)
        first_row = None if geometry.planes == 1 else (plane + self._first_plane) * geometry.rows
        if rows == 1:
            row = row if first_row is None else row + first_row
            self.found.append(stretches(geometry.columns, row[:, None], ends, 1))
            return
        row = torch.add(torch.arange(rows, device=row.device), row[:, None], alpha=rows)
        inside = row < geometry.rows if geometry.rows % rows else None
        row = row if first_row is None else row + first_row[:, None]
        found = stretches(geometry.columns, row[:, :, None], ends[:, None], 1)
        if inside is not None:
            found.masked_fill_(~inside[:, :, None], NOWHERE)
        self.found.append(found.flatten(0, 1))


def first_of(geometry: Geometry) -> int:
    """Most boxes of the highest level on a device."""
    return FIRST.get(geometry.device.type, FIRST["cuda"])


def _factors(planes: int, geometry: Geometry) -> tuple[int, ...]:
    """How boxes are split, so that the highest level has few enough: from blocks up."""
    bits, rows, columns = 0, geometry.rows, geometry.columns
    while planes * rows * columns > first_of(geometry) and max(rows, columns) > 1:
        bits, rows, columns = bits + 1, (rows + 1) // 2, (columns + 1) // 2
    steps = -(-bits // SPLIT_BITS)
    return tuple(1 << (bits * (k + 1) // steps - bits * k // steps) for k in range(steps))
