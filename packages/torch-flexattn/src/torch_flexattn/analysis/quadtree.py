"""From large boxes down to blocks: boxes that are wholly visible or wholly hidden are kept, the others are split.

A whole level is evaluated at once. What comes out are stretches (see ``runs``): of one row of blocks, neighbouring
columns of one kind.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..mods import MaskMod
from ..runs import NOWHERE, joined, stretches
from .alike import as_tensor
from .boxes import Boxes
from .exact_tiles import look, settle
from .geometry import Blocks, Geometry, constant
from .kinds import Kinds
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


def classify(mod: MaskMod, geometry: Geometry, *, check: bool = False) -> tuple[Tensor, bool]:
    """The runs of a mask of which no length is 0.

    Returns:
        Them in their order, as stretches ``[n, 2]`` int64 (see :func:`torch_flexattn.runs.stretches`), and, with
        ``check``, whether captured tensors may be read out of range (else False).
    """
    outside = False
    step = max(1, min(geometry.planes, first_of(geometry), PLANE_VALUES // max(geometry.shape[2:])))
    search = _Search(mod, geometry, at_once=not _factors(step, geometry))
    for first in range(0, geometry.planes, step):
        outside |= search.run(first, min(first + step, geometry.planes), check)
    return search.runs(), outside


def classify_exactly(mod: MaskMod, geometry: Geometry) -> Tensor:
    """The same from every position of every block."""
    number = torch.arange(geometry.planes * geometry.rows * geometry.columns, device=geometry.device)
    row = number // geometry.columns
    blocks = Blocks.at(row // geometry.rows, row % geometry.rows, number % geometry.columns)
    return joined([of_blocks(geometry, blocks, *look(mod, geometry, blocks))], geometry.device)


def of_blocks(geometry: Geometry, blocks: Blocks, some: Tensor, every: Tensor) -> Tensor:
    """Stretches of single blocks of which some positions are visible, or every one."""
    row = blocks.row if geometry.planes == 1 else torch.add(blocks.row, blocks.plane, alpha=geometry.rows)
    ends = blocks.column[:, None] + constant((0, 1), geometry.device)
    return stretches(geometry.columns, row[:, None], ends, every[:, None]).masked_fill_(~some[:, None], NOWHERE)


class _Search:
    """``at_once``: blocks are few enough to look at all of them without boxes above."""

    def __init__(self, mod: MaskMod, geometry: Geometry, *, at_once: bool) -> None:
        self._mod, self._geometry, self._at_once = mod, geometry, at_once
        self._sides = divide(mod.program, mod.scalars, geometry.shape)
        self._found: list[Tensor] = []

    def runs(self) -> Tensor:
        """All that were found, in their order."""
        if not self._at_once:
            return joined(self._found, self._geometry.device)
        return self._found[0] if len(self._found) == 1 else torch.cat(self._found)

    def run(self, first: int, last: int, check: bool) -> bool:
        """Planes from ``first`` to before ``last``."""
        geometry = self._geometry
        factors = _factors(last - first, geometry)
        self._axes = axes(geometry, factors)
        one = last - first == 1
        planes = constant((first,), geometry.device) if one else torch.arange(first, last, device=geometry.device)
        self._first_plane = first
        self._boxes = Boxes(self._mod, self._sides, geometry, self._axes, planes)
        rows, columns = (axis.boxes(len(factors)) for axis in self._axes)
        if self._at_once:
            self._look_at_all(Kinds(geometry, first, last), (last - first, rows, columns))
        else:
            self._look(len(factors), None, (last - first, rows, columns))
        return check and self._boxes.reads_outside

    def _look_at_all(self, kinds: Kinds, shape: tuple[int, int, int]) -> None:
        """Every block, and what ranges leave open again."""
        full, unsettled = self._kinds(0, None, shape)
        kinds.mark_full(full)
        found = unsettled.nonzero()
        if found.shape[0]:
            kinds.mark(Blocks(found), *self._settled(Blocks(found)))
        self._found.append(kinds.runs())

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
            some, every = self._settled(children)
            if self._first_plane:
                children = Blocks.at(children.plane + self._first_plane, children.row, children.column)
            self._found.append(of_blocks(self._geometry, children, some, every))
            return
        factor = self._axes[0].factors[level - 1]
        step = max(1, AT_A_TIME // factor**2)
        for start in range(0, len(children), step):
            part = children if step >= len(children) else children.part(start, start + step)
            self._look(level - 1, part, (len(part), factor, factor))

    def _settled(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """Whether some, and whether all positions of blocks are visible; their planes count from the first one here."""
        first, here = self._first_plane, blocks
        if first:
            here = Blocks.at(blocks.plane + first, blocks.row, blocks.column)

        def hints(of: Blocks) -> tuple[Tensor, Tensor]:
            return self._boxes.hints(Blocks.at(of.plane - first, of.row, of.column) if first else of)

        return settle(self._mod, self._geometry, here, hints if self._boxes.has_hints else None)

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
            self._found.append(stretches(geometry.columns, row[:, None], ends, 1))
            return
        row = torch.add(torch.arange(rows, device=row.device), row[:, None], alpha=rows)
        inside = row < geometry.rows if geometry.rows % rows else None
        row = row if first_row is None else row + first_row[:, None]
        found = stretches(geometry.columns, row[:, :, None], ends[:, None], 1)
        if inside is not None:
            found.masked_fill_(~inside[:, :, None], NOWHERE)
        self._found.append(found.flatten(0, 1))


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
