"""What tensors that are written to a cache, or attend to it, must be."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import InputError, KindError
from ..fp8 import FP8
from ..functional.arguments import named_types

ROUNDED = (torch.float32, torch.float16, torch.bfloat16)
"""Types that a cache of 8 bits takes."""
LEAST_PAGE = 16


def check_sizes(*, page_size: int, **sizes: int) -> None:
    """Raise where a cache cannot be of these sizes.

    Raises:
        KindError: one is no integer.
        InputError: one is not positive; a page size that is no power of two, at least 16.
    """
    for name, size in {"page_size": page_size, **sizes}.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise KindError(f"{name} must be an integer, got {size!r}")
        if size < 1:
            raise InputError(f"{name} must be positive, got {size}")
    if page_size < LEAST_PAGE or page_size & (page_size - 1):
        raise InputError(f"page_size must be a power of two, at least {LEAST_PAGE}, got {page_size}")


def check_slots(slots: Tensor, table: Tensor) -> Tensor:
    """``slots``, if they may be those of sequences.

    Raises:
        KindError: another type than int32.
        InputError: another shape, or another device than that of ``table``.
    """
    if slots.dtype != torch.int32:
        raise KindError(f"seqs must be sequences or what slots(seqs) gave, int32, got a tensor of {slots.dtype}")
    if slots.dim() != 1:
        raise InputError(f"seqs must be sequences or what slots(seqs) gave, [n], got {tuple(slots.shape)}")
    if slots.device != table.device:
        raise InputError(f"seqs is on {slots.device}, but the cache is on {table.device}")
    return slots


def check_seqs(seqs: Sequence[int] | Tensor) -> None:
    """Raise where ``seqs`` is neither a list of sequences nor a tensor of slots.

    Raises:
        KindError: another type.
    """
    if not isinstance(seqs, Sequence | Tensor) or isinstance(seqs, str):
        raise KindError(f"seqs must be a list of sequences, got {seqs!r}")


def check_count(name: str, value: int, most: int | None) -> None:
    """Raise where ``value`` is no number from 0 to ``most``; ``None``: without end.

    Raises:
        KindError: no integer.
        InputError: too small or too large.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise KindError(f"{name} must be an integer, got {value!r}")
    if most is None and value < 0:
        raise InputError(f"{name} must not be negative, got {value}")
    if most is not None and not 0 <= value <= most:
        raise InputError(f"{name} must be from 0 to {most}, got {value}")


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


def check_tokens(seqs: Sequence[int] | Tensor, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor) -> None:
    """Raise where keys and values do not fit to sequences and to their pages.

    Raises:
        KindError: another type.
        InputError: another shape or device.
    """
    check_seqs(seqs)
    heads = k_pages.shape[2]
    check_tensor("k", k, k_pages, (len(seqs), heads, None, k_pages.shape[3]))
    check_tensor("v", v, v_pages, (len(seqs), heads, k.shape[2], v_pages.shape[3]))
