"""One comparison of an accelerated layer with PyG's own forward, on the first inputs it sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""Largest deviation allowed, relative to the largest output."""
TF32_TOLERANCE = 5e-3


class AccelerateError(RuntimeError):
    """An accelerated layer's output deviates from PyG's by more than rounding."""


def verify(layer: Any, ours: Callable[..., Any], pyg: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> None:
    """Run both in evaluation mode (no dropout, no statistics updated) without gradients, and compare.

    Raises:
        AccelerateError: the outputs deviate by more than rounding.
    """
    modes = [(module, module.training) for module in torch.nn.Module.modules(layer)]
    try:
        for module, _ in modes:
            module.training = False
        with torch.no_grad():
            expected, got = pyg(*args, **kwargs), ours(*args, **kwargs)
    finally:
        for module, training in modes:
            module.training = training
    limit = TOLERANCE.get(expected.dtype, 1e-4)
    if layer.passing.precision == "tf32":
        limit = max(limit, TF32_TOLERANCE)
    found = deviation(got, expected)
    if not found <= limit:
        raise AccelerateError(
            f"{type(layer).__name__}: output deviates from PyG's by {found:.3g} of its largest value, "
            f"allowed is {limit:.3g} for {expected.dtype}; restore(model) brings PyG's layer back"
        )


def deviation(got: Tensor, expected: Tensor) -> float:
    """Largest difference relative to the largest expected value; infinite where shapes or non-finite places differ."""
    if got.shape != expected.shape:
        return float("inf")
    finite = expected.isfinite()
    if not torch.equal(finite, got.isfinite()):
        return float("inf")
    if not bool(finite.any()):
        return 0.0
    got, expected = got[finite].double(), expected[finite].double()
    largest = float(expected.abs().max())
    return float((got - expected).abs().max()) / (largest if largest > 0.0 else 1.0)
