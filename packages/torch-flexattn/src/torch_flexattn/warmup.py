"""``warmup``: makes calls before they count, so that nothing is recorded, generated or compiled when they do."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .errors import InputError, KindError
from .functional import flex_attention
from .stats import ObservedCall, listening, stats


@dataclass(frozen=True, eq=False)
class CallSpec:
    """A call that will be made.

    Attributes:
        query: shape of the queries, ``[B, Hq, L, E]``.
        key: shape of the keys, ``[B, Hkv, S, E]``.
        value_width: ``Ev``; default: ``E``.
        dtype: of the features.
        device: of the features.
        backward: whether gradients will be asked for: of query, key and value, and of what captured tensors require.
        arguments: of :func:`flex_attention`, by name: ``score_mod``, ``mask_mod``, ``kernel_options``, …

    Raises:
        InputError: shapes of another rank, or with negative sizes.

    Example:
        >>> CallSpec((1, 4, 8, 16), (1, 2, 8, 16), arguments={"enable_gqa": True}).value_width
    """

    query: tuple[int, int, int, int]
    key: tuple[int, int, int, int]
    value_width: int | None = None
    dtype: torch.dtype = torch.bfloat16
    device: torch.device | str = "cpu"
    backward: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("query", "key"):
            shape = getattr(self, name)
            if len(shape) != 4 or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in shape):
                raise InputError(f"{name} must be four sizes, [B, H, L, E], got {tuple(shape)}")


@dataclass(frozen=True)
class Warmed:
    """What a call took that will not be needed again.

    Attributes:
        kernels: which kernels served, forward, then backward.
        compiles: programs that were recorded, and kernels that were compiled or read from disk.
        seconds: of the call, with all that was compiled for it.

    Example:
        >>> Warmed(("cpu",), 1, 0.5).kernels
        ('cpu',)
    """

    kernels: tuple[str, ...]
    compiles: int
    seconds: float


def warmup(specs: Sequence[CallSpec]) -> tuple[Warmed, ...]:
    """Make each call once, on zeros of its own sizes, and wait for it: it takes the memory that the call takes.

    Kernels are compiled for a type, widths, modifications and which sizes are whole tiles; lengths that differ by more
    than that share them, so one length a kind will do. Blocks of masks are found and remembered; with
    ``kernel_options={"autotune": True}`` tiles are found. After it, calls may be captured in a CUDA graph.

    Args:
        specs: the calls.

    Returns:
        What each took.

    Raises:
        KindError: something else than a :class:`CallSpec` among ``specs``.
        InputError: as of :func:`flex_attention`.

    Example:
        >>> from torch_flexattn import CallSpec, masks, warmup
        >>> spec = CallSpec((1, 2, 8, 16), (1, 2, 8, 16), backward=True, arguments={"mask_mod": masks.causal()})
        >>> warmup([spec])[0].kernels
        ('cpu', 'cpu')
    """
    if not isinstance(specs, Iterable):
        raise KindError(f"specs must be a list of CallSpec, got {specs!r}")
    specs = list(specs)
    for spec in specs:
        if not isinstance(spec, CallSpec):
            raise KindError(f"specs must hold CallSpec, got {type(spec).__name__}")
    return tuple(_warmed(spec) for spec in specs)


def _warmed(spec: CallSpec) -> Warmed:
    heard: list[ObservedCall] = []
    before, began = stats().compiles, time.perf_counter()
    width = spec.key[3] if spec.value_width is None else spec.value_width
    q, k, v = (_zeros(spec, shape) for shape in (spec.query, spec.key, (*spec.key[:3], width)))
    with listening(heard.append), torch.set_grad_enabled(spec.backward):
        results = flex_attention(q, k, v, **spec.arguments)
        out = results[0] if isinstance(results, tuple) else results
        if spec.backward:
            torch.autograd.grad(out, [q, k, v], torch.zeros_like(out))  # and of captures, by the same kernels
    if out.is_cuda:
        torch.cuda.synchronize(out.device)
    return Warmed(
        tuple(call.kernel for call in heard), stats().compiles - before, round(time.perf_counter() - began, 3)
    )


def _zeros(spec: CallSpec, shape: tuple[int, ...]) -> Tensor:
    return torch.zeros(shape, dtype=spec.dtype, device=spec.device, requires_grad=spec.backward)
