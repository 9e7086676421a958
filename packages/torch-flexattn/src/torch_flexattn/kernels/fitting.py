"""Tiles that do not fit into a GPU give way to smaller ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..errors import UnsupportedError
from .asked import own_tiles
from .launch.launch import DoesNotFit
from .passes import Name, Pass
from .triton.tiles import Tiles

LEAST = 16
"""Queries or keys of the smallest tile."""
FITTED: dict[Any, Tiles] = {}
"""Tiles that were found for calls whose own did not fit."""


def run_own(name: Name, call: Pass) -> Any:
    """Launch the portable kernels, or those of decoding, with tiles of their own choice, or smaller ones.

    Raises:
        UnsupportedError: no tile fits.
    """
    key = call.compiled_from(name)
    if key in FITTED:
        return call.run(name, FITTED[key])
    try:
        return call.run(name)
    except DoesNotFit as error:
        tiles, last = own_tiles(call, name), error
    while (tiles := smaller(tiles)) is not None:
        try:
            result = call.run(name, tiles)
        except DoesNotFit as again:
            last = again
        else:
            FITTED[key] = tiles
            return result
    raise UnsupportedError(f"no tile of the {name} kernels fits: {described(call)} ({last})") from last


def smaller(tiles: Tiles) -> Tiles | None:
    """Tiles that need less: a stage less, then half of the longer side, with warps enough for what is left."""
    if tiles.stages > 1:
        return replace(tiles, stages=tiles.stages - 1)
    if max(tiles.rows, tiles.keys) <= LEAST:
        return None
    side = "rows" if tiles.rows >= tiles.keys else "keys"
    half = replace(tiles, **{side: getattr(tiles, side) // 2})
    return replace(half, warps=min(half.warps, max(4, half.rows * half.keys // 1024)))


def described(call: Pass) -> str:
    """What kernels were asked for, for errors: widths, type and architecture."""
    q, _, v = call.features
    place = "this device"
    if q.is_cuda:
        major, minor = torch.cuda.get_device_capability(q.device)
        place = f"sm_{major}{minor}"
    return f"{q.shape[3]} features of queries and keys, {v.shape[3]} of values, {q.dtype}, on {place}"
