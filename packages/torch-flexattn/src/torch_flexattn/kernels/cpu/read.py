"""Reading captured tensors at the indices of a tile: by looking at the indices first, which only a CPU does cheaply."""

from __future__ import annotations

import torch
from torch import Tensor

from ...evaluate import gather


def read(table: Tensor, indices: list[Tensor]) -> tuple[Tensor, Tensor | None]:
    """``table[indices]``, 0 where one is out of range, and where that is; it may be a view of ``table``.

    Args:
        table: a captured tensor.
        indices: one a dimension, of shapes that broadcast.
    """
    if not indices:
        return table, None
    for size, index in zip(table.shape, indices, strict=True):
        low, high = index.aminmax() if index.numel() else (0, size)
        if low < 0 or high >= size:
            return gather(table, indices)
    view = box(table, indices)
    return table[tuple(index.long() for index in indices)] if view is None else view, None


def box(table: Tensor, indices: list[Tensor]) -> Tensor | None:
    """``table[indices]`` as a view, where each index runs through consecutive places in dimensions of its own.

    Args:
        table: any tensor.
        indices: one a dimension, all in range, of shapes that broadcast.
    """
    shape = torch.broadcast_shapes(*(index.shape for index in indices))
    sizes, strides, offset = [1] * len(shape), [0] * len(shape), table.storage_offset()
    for index, stride in zip(indices, table.stride()):
        flat = index.flatten()
        first = int(flat[0])
        if int(flat[-1]) - first != flat.numel() - 1 or bool((flat.diff() != 1).any()):
            return None
        offset += first * stride
        for axis in range(-1, -index.dim() - 1, -1):
            if index.shape[axis] > 1:
                if sizes[axis] > 1:
                    return None
                sizes[axis], strides[axis] = index.shape[axis], stride
                stride *= index.shape[axis]
    return table.as_strided(sizes, strides, offset)
