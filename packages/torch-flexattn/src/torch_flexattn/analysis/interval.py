"""Arithmetic on ranges: what a value can be when its operands can be anything in theirs.

A number is a :class:`Range`, a bool a :class:`Truth`. Their fields are Python numbers where they hold for all boxes,
else tensors that broadcast over boxes. Each rule returns a range that holds every possible result; rules of operations
that rise or fall in each operand are as narrow as can be. An unknown float has NaN as its ends: it compares as unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..program import Node
from .alike import Limit, both, choose, either, least, most, negated
from .float_interval import rounded, run_float


@dataclass(frozen=True)
class Range:
    """A number between ``low`` and ``high``, both included."""

    low: Limit
    high: Limit

    @property
    def fixed(self) -> int | None:
        """The number, where it is one Python integer for all boxes."""
        return self.low if type(self.low) is int and type(self.high) is int and self.low == self.high else None

    @property
    def is_point(self) -> bool:
        """Whether it is one number a box."""
        return self.low is self.high or self.fixed is not None


@dataclass(frozen=True)
class Truth:
    """A bool that can be True, False, or either."""

    can_be_true: Tensor | bool
    can_be_false: Tensor | bool


Value = Range | Truth
EITHER = Truth(True, True)
LIMITS = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}
FITS = {"mul": 2**30, "shl": 2**30}
"""Operands up to this (else 2⁶¹) cannot leave int64."""


def unknown(dtype: str) -> Value:
    """Any value of a type."""
    if dtype == "bool":
        return EITHER
    return Range(*LIMITS[dtype]) if dtype in LIMITS else Range(math.nan, math.nan)


def run(node: Node, args: Sequence[Any]) -> Value:
    """What ``node`` can be. Integers are unbounded here: see :func:`leaves` and :func:`wrapped`."""
    rule: Callable[..., Value | None] | None = None
    if all(isinstance(a, Truth) for a in args):
        rule = _BOOL_RULES.get(node.op)
    elif node.dtype == "bool":
        rule = _COMPARISONS.get(node.op)
    elif node.op == "where":
        rule = _where
    elif node.dtype in LIMITS:
        rule = _INT_RULES.get(node.op)
    elif node.op != "cast":
        ends = {id(a): (a.low, a.high) for a in args}
        return Range(*run_float(node.op, node.dtype, [ends[id(a)] for a in args]))
    if node.op == "cast":
        return _cast(node.dtype, args[0])
    return unknown(node.dtype) if rule is None else rule(*args) or unknown(node.dtype)


def leaves(dtype: str, value: Any) -> bool:
    """Whether an integer whose ends are Python numbers can be outside its type, where PyTorch wraps around."""
    return dtype in LIMITS and isinstance(value, Range) and not (
        LIMITS[dtype][0] <= value.low and value.high <= LIMITS[dtype][1]
    )  # fmt: skip


def wrapped(node: Node, args: Sequence[Any], value: Any) -> Value:
    """``value``, or anything in boxes where the integer may leave its type."""
    lowest, highest = LIMITS[node.dtype]
    if node.dtype == "int32":
        bad = either(value.low < lowest, value.high > highest)
    else:
        limit = FITS.get(node.op, 2**61)
        bad = False
        for arg in args:
            if isinstance(arg, Range):
                bad = either(bad, either(arg.low < -limit, arg.high > limit))
    return Range(choose(bad, lowest, value.low), choose(bad, highest, value.high))


def _is_float(*limits: Limit) -> bool:
    return any(x.is_floating_point() if isinstance(x, Tensor) else isinstance(x, float) for x in limits)


def _may_be_less(a: Limit, b: Limit) -> Tensor | bool:
    """``a < b``, and True where either is unknown."""
    return negated(a >= b) if _is_float(a, b) else a < b


def _may_be_equal_or_less(a: Limit, b: Limit) -> Tensor | bool:
    return negated(a > b) if _is_float(a, b) else a <= b


# Comparisons: numbers in, bool out


def _lt(a: Range, b: Range) -> Truth:
    return Truth(_may_be_less(a.low, b.high), _may_be_equal_or_less(b.low, a.high))


def _le(a: Range, b: Range) -> Truth:
    return Truth(_may_be_equal_or_less(a.low, b.high), _may_be_less(b.low, a.high))


def _eq(a: Range, b: Range) -> Truth:
    meet = both(_may_be_equal_or_less(a.low, b.high), _may_be_equal_or_less(b.low, a.high))
    return Truth(meet, either(_may_be_less(a.low, b.high), _may_be_less(b.low, a.high)))


def _opposite(a: Truth) -> Truth:
    return Truth(a.can_be_false, a.can_be_true)


_COMPARISONS: dict[str, Callable[..., Truth]] = {
    "lt": _lt,
    "le": _le,
    "gt": lambda a, b: _lt(b, a),
    "ge": lambda a, b: _le(b, a),
    "eq": _eq,
    "ne": lambda a, b: _opposite(_eq(a, b)),
}


# Bools in, bool out


def _and(a: Truth, b: Truth) -> Truth:
    return Truth(both(a.can_be_true, b.can_be_true), either(a.can_be_false, b.can_be_false))


def _or(a: Truth, b: Truth) -> Truth:
    return Truth(either(a.can_be_true, b.can_be_true), both(a.can_be_false, b.can_be_false))


def _xor(a: Truth, b: Truth) -> Truth:
    differ = either(both(a.can_be_true, b.can_be_false), both(a.can_be_false, b.can_be_true))
    alike = either(both(a.can_be_true, b.can_be_true), both(a.can_be_false, b.can_be_false))
    return Truth(differ, alike)


_BOOL_RULES: dict[str, Callable[..., Value]] = {
    "and": _and,
    "or": _or,
    "xor": _xor,
    "not": _opposite,
    "ne": _xor,
    "eq": lambda a, b: _opposite(_xor(a, b)),
    "where": lambda c, a, b: _where(c, a, b),
}


# Integers


def _mul(a: Range, b: Range) -> Range:
    if a.fixed is not None:
        a, b = b, a
    if a is b:
        size = _abs(a)
        return Range(size.low * size.low, size.high * size.high)
    factor = b.fixed
    if factor is not None:
        low, high = a.low * factor, a.high * factor
        return Range(low, high) if factor >= 0 else Range(high, low)
    ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    low, high = ends[0], ends[0]
    for end in ends[1:]:
        low, high = least(low, end), most(high, end)
    return Range(low, high)


def _neg(a: Range) -> Range:
    return Range(-a.high, -a.low)


def _abs(a: Range) -> Range:
    return Range(most(most(a.low, -a.high), 0), most(-a.low, a.high))


def _quotient(a: Limit, b: Limit) -> Limit:
    return torch.div(a, b, rounding_mode="floor") if isinstance(a, Tensor) else a // b


def _positive(divisor: Range) -> tuple[Limit, Tensor | bool] | None:
    """A divisor that is one number a box, 1 where it is not positive; and where it is."""
    if not divisor.is_point:
        return None
    fits = divisor.low > 0
    return None if fits is False else (choose(fits, divisor.low, 1), fits)


def _floordiv(a: Range, b: Range) -> Range | None:
    if b.fixed is not None and b.fixed < 0:
        a, b = _neg(a), _neg(b)
    found = _positive(b)
    if found is None:
        return None
    divisor, fits = found
    lowest, highest = LIMITS["int64"]
    return Range(choose(fits, _quotient(a.low, divisor), lowest), choose(fits, _quotient(a.high, divisor), highest))


def _mod(a: Range, b: Range) -> Range | None:
    """Exact inside one period, else anything below the divisor."""
    if b.fixed is not None and b.fixed < 0:
        rest = _mod(_neg(a), _neg(b))
        return None if rest is None else _neg(rest)
    found = _positive(b)
    if found is None:
        return None
    divisor, fits = found
    period = _quotient(a.low, divisor)
    one = period == _quotient(a.high, divisor)
    start = period * divisor
    low, high = choose(one, a.low - start, 0), choose(one, a.high - start, divisor - 1)
    lowest, highest = LIMITS["int64"]
    return Range(choose(fits, low, lowest), choose(fits, high, highest))


def _shl(a: Range, b: Range) -> Range | None:
    return _mul(a, Range(1 << b.fixed, 1 << b.fixed)) if b.fixed is not None and 0 <= b.fixed < 31 else None


def _shr(a: Any, b: Range) -> Range | None:
    return Range(a.low >> b.fixed, a.high >> b.fixed) if b.fixed is not None and 0 <= b.fixed < 31 else None


def _bits(a: Range, b: Range) -> Range | None:
    """``a & b``: with a constant of ones at the end, the remainder of a division."""
    mask = b.fixed if b.fixed is not None else a.fixed
    if mask is None or mask < 0:
        return None
    if mask & (mask + 1) == 0:
        return _mod(a if mask == b.fixed else b, Range(mask + 1, mask + 1))
    return Range(0, mask)


_INT_RULES: dict[str, Callable[..., Range | None]] = {
    "add": lambda a, b: Range(a.low + b.low, a.high + b.high),
    "sub": lambda a, b: Range(a.low - b.high, a.high - b.low),
    "mul": _mul,
    "neg": _neg,
    "abs": _abs,
    "sign": lambda a: Range(most(least(a.low, 1), -1), most(least(a.high, 1), -1)),
    "not": lambda a: Range(-1 - a.high, -1 - a.low),
    "min": lambda a, b: Range(least(a.low, b.low), least(a.high, b.high)),
    "max": lambda a, b: Range(most(a.low, b.low), most(a.high, b.high)),
    "floordiv": _floordiv,
    "mod": _mod,
    "shl": _shl,
    "shr": _shr,
    "and": _bits,
}


def _where(condition: Truth, a: Any, b: Any) -> Value:
    yes, no = condition.can_be_true, condition.can_be_false
    if isinstance(a, Truth):
        true = either(both(yes, a.can_be_true), both(no, b.can_be_true))
        return Truth(true, either(both(yes, a.can_be_false), both(no, b.can_be_false)))
    if yes is False or no is False:
        return b if yes is False else a
    low = choose(no, choose(yes, least(a.low, b.low), b.low), a.low)
    return Range(low, choose(no, choose(yes, most(a.high, b.high), b.high), a.high))


def _cast(dtype: str, a: Value) -> Value:
    if dtype == "bool":
        return a if isinstance(a, Truth) else _opposite(_eq(a, Range(0, 0)))
    if isinstance(a, Truth):
        whole = Range(_number(negated(a.can_be_false)), _number(a.can_be_true))
        return whole if dtype in LIMITS else _cast(dtype, whole)
    if dtype in LIMITS:
        return unknown(dtype) if _is_float(a.low, a.high) else a
    return Range(rounded(a.low, dtype), rounded(a.high, dtype))


def _number(a: Tensor | bool) -> Limit:
    return a.long() if isinstance(a, Tensor) else int(a)
