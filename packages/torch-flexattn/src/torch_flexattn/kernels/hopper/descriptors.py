"""Tensors as Hopper's copy engine is told of them: whole tiles move by one instruction, and rows past the end are 0."""

from __future__ import annotations

from torch import Tensor

ALIGNED = 16
"""Bytes: starts and strides must be multiples."""


def describable(*tensors: Tensor) -> bool:
    """Whether the copy engine can address the tensors ``[B, H, S, E]``."""
    return all(_is_describable(t) for t in tensors)


def _is_describable(t: Tensor) -> bool:
    size = t.element_size()
    strides = [stride * size for stride, n in zip(t.stride()[:3], t.shape[:3]) if n > 1]
    return (
        t.data_ptr() % ALIGNED == 0
        and (t.stride(3) == 1 or t.shape[3] == 1)
        and t.numel() > 0
        and all(stride > 0 and stride % ALIGNED == 0 for stride in strides)
    )


def strides_of(t: Tensor) -> tuple[int, ...]:
    """Strides that the copy engine takes: those of dimensions of size 1 may be anything in PyTorch."""
    whole = -(-t.shape[3] * t.element_size() // ALIGNED) * ALIGNED // t.element_size()
    strides = (stride if n > 1 else whole for stride, n in zip(t.stride()[:3], t.shape[:3]))
    return *strides, 1
