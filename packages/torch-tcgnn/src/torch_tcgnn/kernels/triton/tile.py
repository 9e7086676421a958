"""Tile sizes by feature width and type, and how tensors are handed to a kernel."""

from __future__ import annotations

import contextlib
import functools
from contextlib import AbstractContextManager

import torch
from torch import Tensor

NUM_WARPS = 4
THREADS = 32 * NUM_WARPS
MAX_FEATURES = 128
"""Widest tile: a row of 512 bytes in float32."""


@functools.cache
def tile(width: int, dtype: torch.dtype) -> tuple[int, int]:
    """``(ROWS, BLOCK_F)`` for rows of ``width`` features: every thread holds 16 bytes of the tile."""
    features = power_of_two(width)
    if features > MAX_FEATURES:
        features = MAX_FEATURES
        while features > 32 and -width % features > width // 4:  # no more than a fifth of the lanes idle
            features //= 2
    rows = max(2, min(THREADS, THREADS * (16 // dtype.itemsize) // features))
    return rows, features


def power_of_two(n: int) -> int:
    """The least power of two that is at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def rows_of(x: Tensor) -> Tensor:
    """``[K, ...]`` as ``[K, C]`` with neighbouring features side by side; the stride between rows is free."""
    flat = x.unsqueeze(1) if x.dim() == 1 else x.flatten(1)
    return flat if flat.shape[1] <= 1 or flat.stride(1) == 1 else flat.contiguous()


def on_device(t: Tensor) -> AbstractContextManager[object]:
    """Make a tensor's GPU the current one for a launch."""
    return torch.cuda.device(t.device) if t.is_cuda else contextlib.nullcontext()
