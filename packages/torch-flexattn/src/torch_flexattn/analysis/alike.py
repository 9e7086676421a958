"""The same steps for Python numbers, which hold for all boxes and cost nothing, and for tensors over boxes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

Limit = Tensor | int | float
"""A number."""
Bool = Tensor | bool


def least(a: Limit, b: Limit) -> Limit:
    """The lesser of two numbers."""
    if isinstance(a, Tensor):
        return torch.minimum(a, b) if isinstance(b, Tensor) else a.clamp(max=b)
    return b.clamp(max=a) if isinstance(b, Tensor) else math.nan if _is_nan(a, b) else min(a, b)


def most(a: Limit, b: Limit) -> Limit:
    """The greater of two numbers."""
    if isinstance(a, Tensor):
        return torch.maximum(a, b) if isinstance(b, Tensor) else a.clamp(min=b)
    return b.clamp(min=a) if isinstance(b, Tensor) else math.nan if _is_nan(a, b) else max(a, b)


def _is_nan(a: int | float, b: int | float) -> bool:
    return a != a or b != b


def choose(condition: Bool, a: Any, b: Any) -> Any:
    """``a`` where the condition holds, else ``b``."""
    return torch.where(condition, a, b) if isinstance(condition, Tensor) else a if condition else b


def both(a: Bool, b: Bool) -> Bool:
    """Both bools."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a & b
    known, other = (b, a) if isinstance(a, Tensor) else (a, b)
    return other if known else False


def either(a: Bool, b: Bool) -> Bool:
    """At least one of two bools."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a | b
    known, other = (b, a) if isinstance(a, Tensor) else (a, b)
    return True if known else other


def as_tensor(a: Limit | bool, device: torch.device) -> Tensor:
    """``a`` on a device, without waiting for it."""
    return a if isinstance(a, Tensor) else torch.full((), a, device=device)


def negated(a: Bool) -> Bool:
    """The other bool."""
    return ~a if isinstance(a, Tensor) else not a
