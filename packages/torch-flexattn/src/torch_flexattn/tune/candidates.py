"""What is timed: the kernels' own tiles first, then others that fit by a rough count of shared memory.

Not a grid: tiles that a kernel of this kind is known to like somewhere. A call times at most ``MOST``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..kernels.asked import own_tiles
from ..kernels.passes import Name, Pass
from ..kernels.triton.tiles import Tiles, shared_bytes

MOST = 12
FORWARD = (
    (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), (128, 32, 4, 3), (64, 64, 4, 3), (64, 128, 4, 2),
    (64, 32, 4, 3), (64, 64, 8, 2), (32, 64, 4, 3),
)  # fmt: skip
BACKWARD = (
    (64, 128, 8, 3), (64, 64, 4, 2), (128, 64, 8, 2), (32, 128, 4, 3), (64, 64, 8, 2), (32, 64, 4, 2),
    (128, 128, 8, 1), (64, 128, 8, 1), (32, 32, 4, 1),
)  # fmt: skip
WIDER = ((64, 32, 4, 2), (64, 64, 4, 1), (64, 64, 8, 1), (32, 64, 4, 2), (32, 32, 4, 2), (32, 32, 8, 1), (16, 64, 4, 2))
"""For float32, in both passes."""
DECODE = ((128, 4, 2), (64, 4, 3), (64, 4, 4), (64, 8, 3), (32, 4, 3), (32, 4, 4), (128, 8, 3))
"""Keys, warps and stages; the rows follow from the queries."""
HOPPER = ((128, 2), (128, 3), (64, 3), (64, 4), (64, 2))
HOPPER_BACKWARD = ((64, (2, 2)), (64, (3, 3)), (64, (2, 1)), (64, (1, 1)), (128, (1, 1)))
HOPPER_BYTES = 226 * 1024
"""Of shared memory for tiles; a program there has one KiB more, for barriers."""
RESERVED = 4
"""Of the candidates, for the portable kernels, where others come before them."""


@dataclass(frozen=True)
class Candidate:
    """Kernels and their tiles.

    Attributes:
        kernel: which kernels.
        tiles: as they take them.
    """

    kernel: Name
    tiles: Any

    def __str__(self) -> str:
        return f"{self.kernel} {self.tiles}"


def candidates(call: Pass, names: Sequence[Name]) -> list[Candidate]:
    """At most ``MOST``, of the kernels that can serve a call; the first is what runs without tuning."""
    found: list[Candidate] = []
    for place, name in enumerate(names):
        most = MOST if place == len(names) - 1 else MOST - RESERVED
        found += [Candidate(name, tiles) for tiles in _of(call, name)][: most - len(found)]
    return found


def _of(call: Pass, name: Name) -> list[Any]:
    if name == "hopper":
        return _hopper_backward(call) if call.backward else _hopper_forward(call)
    own = own_tiles(call, name)
    if name == "decode":
        others = [Tiles(own.rows, *sizes) for sizes in DECODE]
    else:
        wide = call.features[0].element_size() > 2
        sizes = WIDER if wide else BACKWARD if call.backward else FORWARD
        others = [Tiles(*size) for size in sizes]
        others = [t for t in others if not (call.block[0] % t.rows or call.block[1] % t.keys)]
    return [own, *(tiles for tiles in others if tiles != own and _fits(call, tiles))]


def _fits(call: Pass, tiles: Tiles) -> bool:
    """By the tiles of keys and values in flight, or of queries and output gradients."""
    q, _, v = call.features
    side = tiles.rows if call.backward else tiles.keys
    return tiles.stages * side * (q.shape[3] + v.shape[3]) * q.element_size() <= shared_bytes(q.device)


def _hopper_forward(call: Pass) -> list[Any]:
    from ..kernels.hopper import attention, forward_source

    q, _, v = call.features
    own, others = attention.forward_tiles(call.width), [attention.Tiles(*sizes) for sizes in HOPPER]
    queries = forward_source.GROUPS * forward_source.ROWS * q.shape[3]

    def fits(tiles: Any) -> bool:
        return 2 * (queries + tiles.stages * tiles.keys * (q.shape[3] + v.shape[3])) <= HOPPER_BYTES

    return [own, *(t for t in others if t != own and call.block[1] % t.keys == 0 and fits(t))]


def _hopper_backward(call: Pass) -> list[Any]:
    from ..kernels.hopper import attention, wide_backward_source

    q, _, v = call.features
    own = attention.backward_tiles(call.width)
    others = [replace(own, rows=rows, stages=stages) for rows, stages in HOPPER_BACKWARD]
    wide = call.width > attention.NARROW

    def fits(tiles: Any) -> bool:
        fetched = tiles.rows * (tiles.stages[0] * q.shape[3] + tiles.stages[1] * v.shape[3])
        kept = tiles.columns * (q.shape[3] + v.shape[3]) + 2 * tiles.columns * tiles.rows * (2 if wide else 1)
        sums = tiles.rows * 2 * (wide_backward_source.STAGED * wide_backward_source.PIECE if wide else q.shape[3])
        return 2 * (fetched + kept + sums) <= HOPPER_BYTES and not (wide and tiles.rows != own.rows)

    return [own, *(t for t in others if t != own and call.block[0] % t.rows == 0 and fits(t))]
