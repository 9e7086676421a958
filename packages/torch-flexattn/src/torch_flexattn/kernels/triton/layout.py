"""How tensors lie in memory, as kernels want them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def last_together(t: Tensor) -> Tensor:
    """With features side by side; other strides are free."""
    return t if t.stride(3) == 1 or t.shape[3] == 1 else ordered_like(t, t.shape[3]).copy_(t)


def in_a_row(t: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Without gaps, as kernels read what there is one of for each head, batch entry or row."""
    return (t if dtype is None else t.to(dtype)).contiguous()


def without_gaps(kv_lens: Tensor | None, options: dict[str, Any]) -> Tensor | None:
    """Lengths, and in ``options`` offsets and sinks, as kernels read them: one after the other, integers in 32 bits."""
    if isinstance(options["q_offset"], Tensor):
        options["q_offset"] = in_a_row(options["q_offset"], torch.int32)
    if options["sinks"] is not None:
        options["sinks"] = in_a_row(options["sinks"])
    return None if kv_lens is None else in_a_row(kv_lens, torch.int32)


def readable(seed: int | Tensor, q: Tensor) -> int | Tensor:
    """A seed that kernels can read: one that lies elsewhere is known to the host, or is brought there."""
    if isinstance(seed, Tensor) and seed.device != q.device:
        return int(seed) if seed.device.type == "cpu" else seed.to(q.device)
    return seed


def ordered_like(q: Tensor, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """An empty tensor of the shape of ``q`` but for its features, with dimensions in memory in the order of ``q``.

    It has the type of ``q``, or another.
    """
    order = sorted(range(3), key=lambda d: -q.stride(d))
    return torch.empty_permuted((*q.shape[:3], width), (*order, 3), dtype=dtype or q.dtype, device=q.device)
