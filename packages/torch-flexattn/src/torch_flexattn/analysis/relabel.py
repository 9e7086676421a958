"""Known blocks whose partial ones may be full or hidden after all: of a mask that was cut, or that came from lists."""

from __future__ import annotations

import torch
from torch import Tensor

from ..mods import MaskMod
from ..runs import NOWHERE, assemble, counted, stretches
from .exact_tiles import settle
from .geometry import Blocks, Geometry
from .quadtree import of_blocks


def relabelled(
    mod: MaskMod, geometry: Geometry, row: Tensor, start: Tensor, stop: Tensor, is_full: Tensor
) -> tuple[Tensor, Tensor]:
    """Runs of blocks of which the partial ones are looked at.

    Args:
        mod: what is visible in partial blocks.
        geometry: the blocks.
        row: int64 ``[n]``, like all that follow: row of blocks, counted over all planes.
        start: first column of a run.
        stop: column after its last; nothing where it is not greater than ``start``.
        is_full: bool.

    Returns:
        ``row_ptr`` and ``runs`` (see ``BlockMask``).
    """
    partial = (~is_full & (start < stop)).nonzero().squeeze(1)
    number, column = counted(start[partial], (stop - start)[partial])
    place = row[partial][number]
    blocks = Blocks.at(place // geometry.rows, place % geometry.rows, column)
    whole = whole_runs(geometry, row, start, torch.where(is_full, stop, start), is_full)
    single = of_blocks(geometry, blocks, *settle(mod, geometry, blocks))
    return assemble([whole, single], geometry.planes * geometry.rows, geometry.columns, geometry.device)


def whole_runs(geometry: Geometry, row: Tensor, start: Tensor, stop: Tensor, is_full: Tensor) -> Tensor:
    """Stretches of runs as they are; arguments as of :func:`relabelled`."""
    found = stretches(geometry.columns, row[:, None], torch.stack([start, stop], dim=1), is_full[:, None])
    return found.masked_fill_((start >= stop)[:, None], NOWHERE)
