"""How tensors lie in memory, as kernels want them."""

from __future__ import annotations

import torch
from torch import Tensor


def last_together(t: Tensor) -> Tensor:
    """With features side by side; other strides are free."""
    return t if t.stride(3) == 1 or t.shape[3] == 1 else t.contiguous()


def ordered_like(q: Tensor, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """An empty tensor of the shape of ``q`` but for its features, with dimensions in memory in the order of ``q``.

    It has the type of ``q``, or another.
    """
    order = sorted(range(3), key=lambda d: -q.stride(d))
    return torch.empty_permuted((*q.shape[:3], width), (*order, 3), dtype=dtype or q.dtype, device=q.device)
