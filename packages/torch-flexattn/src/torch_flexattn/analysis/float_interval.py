"""Floats: rules for what IEEE 754 rounds correctly, so that ends of ranges go through the very operation they bound.

Rounding keeps the order of exact results. A range that reaches infinity is unknown: infinities can become NaN, which no
range tells. Square roots differ in the last bit between vector and scalar code of one machine, so their ranges are
widened; functions that libraries approximate further (``exp``, ``tanh``, …) have no rules, and unknown results.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..program import DTYPES
from .alike import Limit, choose, least, most

Ends = tuple[Limit, Limit]
SQRT_ERROR = 4
"""Units in the last place by which a square root may be off: four times what vector libraries state."""


def rounded(a: Limit, dtype: str) -> Limit:
    """A number as a float of a type."""
    return a.to(DTYPES[dtype]) if isinstance(a, Tensor) else torch.tensor(a, dtype=DTYPES[dtype]).item()


def run_float(op: str, dtype: str, args: list[Ends]) -> Ends:
    """What a float operation can give.

    Args:
        op: its name.
        dtype: of operands and result.
        args: low and high of every operand; the same object twice: the same number twice.
    """
    rule = _RULES.get(op)
    if rule is None:
        return math.nan, math.nan
    low, high = rule(*args)
    if op == "sqrt":
        slack = SQRT_ERROR * torch.finfo(DTYPES[dtype]).eps
        low, high = low * (1 - slack), high * (1 + slack)
    if not isinstance(low, Tensor) and not isinstance(high, Tensor):
        low, high = (rounded(x, dtype) if math.isfinite(x) else math.nan for x in (low, high))
    width = high - low
    finite = width.isfinite() if isinstance(width, Tensor) else math.isfinite(width)
    return choose(finite, low, math.nan), choose(finite, high, math.nan)


def _square_or_product(a: Ends, b: Ends) -> Ends:
    if a is b:
        low, high = _abs(a)
        return low * low, high * high
    return _extremes([x * y for x in a for y in b])


def _quotient(a: Ends, b: Ends) -> Ends:
    around_zero = (b[0] <= 0) & (b[1] >= 0)
    divisor = tuple(choose(around_zero, math.nan, x) for x in b)
    return _extremes([x / y for x in a for y in divisor])


def _extremes(ends: list[Limit]) -> Ends:
    low = high = ends[0]
    for end in ends[1:]:
        low, high = least(low, end), most(high, end)
    return low, high


def _abs(a: Ends) -> Ends:
    return most(most(a[0], -a[1]), 0.0), most(-a[0], a[1])


def _each(function: Callable[[Tensor], Tensor]) -> Callable[[Ends], Ends]:
    """A function that rises, at both ends."""

    def at(end: Limit) -> Limit:
        return function(end) if isinstance(end, Tensor) else function(torch.tensor(end, dtype=torch.float64)).item()

    return lambda a: (at(a[0]), at(a[1]))


_RULES: dict[str, Callable[..., Ends]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _square_or_product,
    "div": _quotient,
    "neg": lambda a: (-a[1], -a[0]),
    "abs": _abs,
    "min": lambda a, b: (least(a[0], b[0]), least(a[1], b[1])),
    "max": lambda a, b: (most(a[0], b[0]), most(a[1], b[1])),
    "sqrt": _each(torch.sqrt),
    "floor": _each(torch.floor),
    "ceil": _each(torch.ceil),
    "trunc": _each(torch.trunc),
    "round": _each(torch.round),
}
