"""Features cut into powers of two, which Triton's tiles must be: 96 is 64 and 32, not 128 with a quarter empty."""

from __future__ import annotations

from dataclasses import dataclass

LEAST = 16
"""Features of a chunk, at least: what a tensor core multiplies at once."""


def next_power_of_2(n: int) -> int:
    """The least power of two that is not below ``n``.

    Example:
        >>> next_power_of_2(5), next_power_of_2(8)
        (8, 8)
    """
    return 1 << (n - 1).bit_length()


@dataclass(frozen=True)
class Chunk:
    """Neighbouring features.

    Attributes:
        start: the first.
        size: a power of two.
        used: how many of them there are; fewer than ``size`` in the last chunk of an odd width.
    """

    start: int
    size: int
    used: int

    @property
    def whole(self) -> bool:
        return self.used == self.size


def chunks(width: int) -> list[Chunk]:
    """The chunks of ``width`` features, the largest first; the last is padded to a multiple of 16.

    Example:
        >>> [c.size for c in chunks(96)], [c.size for c in chunks(20)], [(c.size, c.used) for c in chunks(72)]
        ([64, 32], [32], [(64, 64), (16, 8)])
    """
    left, start, found = -(-width // LEAST) * LEAST, 0, []
    while left:
        size = 1 << left.bit_length() - 1
        found.append(Chunk(start, size, min(size, width - start)))
        left, start = left - size, start + size
    return found
