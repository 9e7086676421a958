"""What tensors that are written to a cache, or attend to it, must be."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError, KindError
from ..fp8 import FP8
from ..functional.arguments import named_types

ROUNDED = (torch.float32, torch.float16, torch.bfloat16)
"""Types that a cache of 8 bits takes."""


def check_tensor(name: str, t: Tensor, pages: Tensor, sizes: tuple[int | None, ...]) -> None:
    """Raise where ``t`` does not fit to ``pages``; ``sizes``: ``None`` where any will do.

    Raises:
        KindError: another type.
        InputError: another shape or device.
    """
    given = ROUNDED if pages.dtype == FP8 else (pages.dtype,)
    if not isinstance(t, Tensor) or t.dtype not in given:
        got = t.dtype if isinstance(t, Tensor) else type(t).__name__
        if pages.dtype == FP8:
            raise KindError(f"{name} must be {named_types(given)}, which a cache of {FP8} rounds, got {got}")
        raise KindError(f"{name} must be a tensor of the cache's dtype {pages.dtype}, got {got}")
    if t.device != pages.device:
        raise InputError(f"{name} is on {t.device}, but the cache is on {pages.device}")
    if t.dim() != len(sizes) or any(size not in (None, own) for size, own in zip(sizes, t.shape)):
        wanted = ", ".join("any" if size is None else str(size) for size in sizes)
        raise InputError(f"{name} must have shape [{wanted}], got {tuple(t.shape)}")
