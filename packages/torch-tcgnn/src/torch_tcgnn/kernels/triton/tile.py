"""Tile sizes by feature width and type, and how tensors are handed to a kernel."""

from __future__ import annotations

import functools

from torch import Tensor

NUM_WARPS = 4
THREADS = 32 * NUM_WARPS
MAX_FEATURES = 128
"""Widest tile: a row of 512 bytes in float32."""


def vector(width: int, *tables: Tensor) -> int:
    """Elements that one load may take: a power of two that divides ``width`` and every row's start, up to 16 bytes."""
    size = tables[0].element_size()
    start = 0
    for table in tables:
        start |= table.data_ptr() | table.stride(0) * size
    elements = 16 // size
    while elements > 1 and (width % elements or start % (elements * size)):
        elements //= 2
    return elements


@functools.cache
def tile(width: int, elements: int, limit: int = MAX_FEATURES) -> tuple[int, int]:
    """``(ROWS, BLOCK_F)`` for rows of ``width`` features: a thread holds ``elements`` (more near ``limit``)."""
    features = power_of_two(width)
    if features > limit:
        features = limit
        while features > 32 and -width % features > width // 4:  # no more than a fifth of the lanes idle
            features //= 2
    return max(2, min(THREADS, THREADS * elements // features)), features


def power_of_two(n: int) -> int:
    """The least power of two that is at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def rows_of(x: Tensor) -> Tensor:
    """``[K, ...]`` as ``[K, C]`` with neighbouring features side by side; the stride between rows is free."""
    flat = x.unsqueeze(1) if x.dim() == 1 else x.flatten(1)
    return flat if flat.shape[1] <= 1 or flat.stride(1) == 1 else flat.contiguous()
