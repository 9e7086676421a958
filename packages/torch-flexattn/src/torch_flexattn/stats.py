"""What this package has done so far, counted; and its calls, for those who listen.

Counting is an addition beside work that takes far longer. A call is reported only while somebody listens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from .errors import KindError


@dataclass
class Stats:
    """Counts since the process began, or since :func:`reset_stats`.

    Attributes:
        programs: functions that were recorded as programs.
        kernels_loaded: kernels that were compiled or read from disk, once for each kind of arguments.
        masks_built: block masks that calls of attention had built.
        masks_reused: block masks that calls found again.
        mask_build_ms: time of building them; on a GPU while nobody listens, of the launches.
        kernel: which kernels served the last pass: ``"cpu"``, or of a GPU ``"decode"``, ``"hopper"`` or ``"triton"``
            (the portable ones); ``""`` before it.

    Example:
        >>> Stats(programs=2).programs
        2
    """

    programs: int = 0
    kernels_loaded: int = 0
    masks_built: int = 0
    masks_reused: int = 0
    mask_build_ms: float = 0.0
    kernel: str = ""

    @property
    def compiles(self) -> int:
        """What was made anew for a mod: programs and kernels."""
        return self.programs + self.kernels_loaded


@dataclass(frozen=True, eq=False)
class ObservedCall:
    """One pass of kernels, forward or backward.

    Attributes:
        kernel: which kernels, as in :class:`Stats`.
        query: shape of the queries, ``[B, Hq, L, E]``.
        key: shape of the keys, ``[B, Hkv, S, E]``.
        value_width: ``Ev``.
        mask: the block mask; ``None``: all is visible.
        dtype: of the features.
        device: of the features.
        backward: which pass.

    Example:
        >>> import torch
        >>> from torch_flexattn import flex_attention, listening, masks
        >>> q, calls = torch.randn(1, 2, 5, 8), []
        >>> with listening(calls.append):
        ...     out = flex_attention(q, q, q, mask_mod=masks.causal())
        >>> calls[0].kernel, calls[0].mask.visible_pairs(), calls[0].backward
        ('cpu', 15, False)
    """

    kernel: str
    query: tuple[int, ...]
    key: tuple[int, ...]
    value_width: int
    mask: Any
    dtype: torch.dtype
    device: torch.device
    backward: bool


COUNTS = Stats()
"""Counted into by what counts."""
LISTENERS: list[Callable[[ObservedCall], None]] = []
"""Who hears of calls."""


def stats() -> Stats:
    """The counts, as they are now.

    Example:
        >>> from torch_flexattn import masks, reset_stats, stats
        >>> reset_stats()
        >>> stats().masks_built
        0
    """
    return replace(COUNTS)


def reset_stats() -> None:
    """Count from 0.

    Example:
        >>> reset_stats()
        >>> stats()
        Stats(programs=0, kernels_loaded=0, masks_built=0, masks_reused=0, mask_build_ms=0.0, kernel='')
    """
    for field in fields(Stats):
        setattr(COUNTS, field.name, field.default)


@contextmanager
def listening(listener: Callable[[ObservedCall], None]) -> Iterator[None]:
    """Hear of every call of attention inside; not of those with ``backend="reference"``.

    Args:
        listener: called with an :class:`ObservedCall` after its kernels were; on a GPU they may still run.

    Raises:
        KindError: ``listener`` cannot be called.

    Example:
        >>> import torch
        >>> from torch_flexattn import flex_attention, listening
        >>> q, kernels = torch.randn(1, 2, 5, 8), []
        >>> with listening(lambda call: kernels.append(call.kernel)):
        ...     out = flex_attention(q, q, q)
        >>> kernels
        ['cpu']
    """
    if not callable(listener):
        raise KindError(f"listener must be a function of an ObservedCall, got {type(listener).__name__}")
    LISTENERS.append(listener)
    try:
        yield
    finally:
        LISTENERS.remove(listener)


def serving(kernel: str) -> None:
    """Kernels say that it is them."""
    COUNTS.kernel = kernel


def note_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, *, backward: bool) -> None:
    """Tell those who listen of the pass that was served last."""
    if LISTENERS:
        call = ObservedCall(
            COUNTS.kernel, tuple(q.shape), tuple(k.shape), v.shape[-1], mask, q.dtype, q.device, backward
        )
        for listener in tuple(LISTENERS):
            listener(call)


@contextmanager
def building_mask(device: torch.device) -> Iterator[None]:
    """Count a block mask that is built inside, and its time."""
    waits = bool(LISTENERS) and device.type == "cuda"
    if waits:
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    yield
    if waits:
        torch.cuda.synchronize(device)
    COUNTS.masks_built += 1
    COUNTS.mask_build_ms += 1e3 * (time.perf_counter() - began)
