"""How kernels cut their work, by what they compute and where.

They are as large as fits; which are fastest on which GPU is not settled for the portable kernels.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch

from ..launch.driver import most_shared

SMALLEST = 99 * 1024
"""Bytes of shared memory that a program can have on the smallest GPUs served."""


@dataclass(frozen=True)
class Tiles:
    """How a kernel cuts its work.

    Attributes:
        rows: queries of a tile.
        keys: keys of a tile.
        warps: of a program.
        stages: of the pipeline that fetches tiles.
    """

    rows: int
    keys: int
    warps: int
    stages: int

    def inside(self, block: tuple[int, int]) -> Tiles:
        """Tiles that divide a block."""
        rows = min(self.rows, block[0] & -block[0])
        keys = min(self.keys, block[1] & -block[1])
        return replace(self, rows=rows, keys=keys)


@functools.lru_cache(maxsize=64)
def shared_bytes(device: torch.device) -> int:
    """Shared memory that a program can have."""
    if device.type != "cuda":
        return SMALLEST
    number = torch.cuda.current_device() if device.index is None else device.index
    return most_shared(number)


def forward_tiles(width: int, element_bytes: int, block: tuple[int, int], *, widening: bool = False) -> Tiles:
    """Tiles of the forward kernel: what fits into shared memory, and into registers where tiles are widened there."""
    if element_bytes > 2:
        tiles = Tiles(64, 32, 4, 2) if width <= 128 else Tiles(32, 32, 4, 1)
    elif width <= 128:
        tiles = Tiles(128, 64, 4, 2)
    else:
        tiles = Tiles(64, 64, 4, 2)
    if widening and width > 64:
        tiles = replace(tiles, warps=8)
    return tiles.inside(block)


def backward_tiles(width: int, element_bytes: int, block: tuple[int, int]) -> Tiles:
    """Tiles of the backward kernel, likewise."""
    if element_bytes > 2:
        tiles = Tiles(32, 32, 4, 1)
    elif width <= 128:
        tiles = Tiles(64, 128, 8, 2)
    else:
        tiles = Tiles(32, 64, 8, 1)
    return tiles.inside(block)


def deterministic_tiles(width: int, element_bytes: int, block: tuple[int, int], exact: bool) -> tuple[Tiles, Tiles]:
    """Tiles of the two kernels of the deterministic backward pass: that of keys, and that of queries.

    ``exact``: integers of 64 bits are added for elements of a tile, which needs registers and shared memory.
    """
    tiles = backward_tiles(width, element_bytes, block)
    small = replace(tiles, keys=min(tiles.keys, 64), stages=1)
    return small if exact else tiles, small
