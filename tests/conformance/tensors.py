"""Look into nested arguments and results: map over their tensors, copy them, compare them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def map_tensors(change: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """The same nested value with every tensor replaced by `change(tensor)`."""
    return pytree.tree_map(lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf, value)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor of a nested value, in order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def to_dtype(value: Any, dtype: torch.dtype) -> Any:
    """A detached copy in which floating tensors have `dtype`; strides are kept where the tensor is not expanded."""
    return map_tensors(lambda t: t.detach().to(dtype) if t.is_floating_point() else t, value)


def to_device(value: Any, device: str) -> Any:
    """The same nested value with every tensor on `device`; untouched where it already is."""
    return map_tensors(lambda t: t.to(device), value)


def differences(actual: Any, expected: Any, *, rtol: float = 0.0, atol: float = 0.0) -> str:
    """What differs between two nested results, empty when nothing does. Floats are compared in float64."""
    ours, theirs = tensors_in(actual), tensors_in(expected)
    if len(ours) != len(theirs):
        return f"{len(ours)} tensors against {len(theirs)}"
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a.shape != b.shape:
            return f"output {index} has shape {list(a.shape)} against {list(b.shape)}"
        wide = [t.double() if t.is_floating_point() else t for t in (a.detach(), b.detach())]
        if wide[0].dtype != wide[1].dtype:
            return f"output {index} has dtype {a.dtype} against {b.dtype}"
        try:
            torch.testing.assert_close(*wide, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            return f"output {index}: " + " ".join(str(error).split())
    return ""


def first_line(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
