"""Tiles that a caller asked for, as kernels take them, or why they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..errors import InputError
from ..options import Tile
from .passes import Name, Pass
from .triton.chunks import next_power_of_2
from .triton.decode import LEAST_ROWS, decode_tiles
from .triton.tiles import Tiles, backward_tiles, deterministic_tiles, forward_tiles, shared_bytes

HALF = 64
"""Features up to which Hopper's backward kernel has room for tiles of 128 queries."""


def asked_tiles(call: Pass, name: Name, tile: Tile) -> Any:
    """The tiles of kernels with the sizes of ``tile``, the others their own.

    Raises:
        InputError: they do not fit the kernels, or the blocks of the mask.
    """
    if name == "hopper":
        return _of_hopper_backward(call, tile) if call.backward else _of_hopper_forward(call, tile)
    own = own_tiles(call, name)
    rows, keys, warps, stages = (given or default for given, default in zip(tile, _sizes(own)))
    if name == "triton":
        _check_divides("BLOCK_M", tile.rows, "queries", call.block[0])
        _check_divides("BLOCK_N", tile.keys, "keys", call.block[1])
    return Tiles(rows, keys, warps, stages)


def own_tiles(call: Pass, name: Name) -> Tiles:
    """What the portable kernels, or those of decoding, take by themselves."""
    q, k, _ = call.features
    if name == "triton" and call.deterministic:
        return deterministic_tiles(call.width, q.element_size(), call.block, exact=False)[0]
    if name == "triton":
        return (backward_tiles if call.backward else forward_tiles)(call.width, q.element_size(), call.block)
    rows = max(LEAST_ROWS, next_power_of_2(q.shape[1] // k.shape[1] * q.shape[2]))
    return decode_tiles(call.width, q.element_size(), rows, shared_bytes(q.device))


def _sizes(tiles: Tiles) -> tuple[int, int, int, int]:
    return tiles.rows, tiles.keys, tiles.warps, tiles.stages


def _of_hopper_forward(call: Pass, tile: Tile) -> Any:
    from .hopper import attention, forward_source

    own, rows = attention.forward_tiles(call.width), forward_source.GROUPS * forward_source.ROWS
    _check_hopper(tile, rows=(rows,), keys=(64, 128))
    _check_divides("BLOCK_N", tile.keys, "keys", call.block[1])
    return attention.Tiles(tile.keys or own.keys, tile.stages or own.stages)


def _of_hopper_backward(call: Pass, tile: Tile) -> Any:
    from .hopper import attention

    own = attention.backward_tiles(call.width)
    _check_hopper(tile, rows=(64, 128) if call.width <= HALF else (own.rows,), keys=(own.columns,))
    _check_divides("BLOCK_M", tile.rows, "queries", call.block[0])
    stages = own.stages if tile.stages is None else (tile.stages, tile.stages)
    return replace(own, rows=tile.rows or own.rows, stages=stages)


def _check_hopper(tile: Tile, *, rows: tuple[int, ...], keys: tuple[int, ...]) -> None:
    for name, given, taken in (("BLOCK_M", tile.rows, rows), ("BLOCK_N", tile.keys, keys)):
        if given not in (None, *taken):
            raise InputError(
                f"kernel option {name} of Hopper's kernels is {' or '.join(map(str, taken))} here, got {given}"
            )
    if tile.warps is not None:
        raise InputError(
            f"kernel option num_warps is none of Hopper's kernels, whose warps are fixed; got {tile.warps}"
        )


def _check_divides(name: str, size: int | None, of: str, block: int) -> None:
    if size is not None and block % size:
        raise InputError(f"kernel option {name}={size} must divide the {block} {of} of a block of the mask")
