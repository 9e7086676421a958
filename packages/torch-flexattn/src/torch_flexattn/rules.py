"""How an operation of PyTorch becomes nodes of a program: arithmetic, comparisons, choices and types.

Types are made explicit: operands are cast as PyTorch would. Functions that are made of several operations are in
``compositions``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .program import NAMES

if TYPE_CHECKING:
    from .lowering import Lowering

aten = torch.ops.aten
Rule = Callable[..., Any]
FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Number:
    """A value that a node of the program computes."""

    node: int


def fits(value: int, dtype: str) -> bool:
    info = torch.iinfo(getattr(torch, dtype))
    return info.min <= value <= info.max


def _common(lower: Lowering, dtype: str, *operands: Any) -> str:
    """The type in which operands of a comparison meet: PyTorch's promotion, a Python number taking the other's."""
    typed = [lower.dtype_of(o) for o in operands if isinstance(o, Number)]
    found = typed[0]
    for other in typed[1:]:
        found = NAMES[torch.promote_types(getattr(torch, found), getattr(torch, other))]
    for value in (o for o in operands if not isinstance(o, Number)):
        other = lower.dtype_of(value)
        if other == "float32" and found not in FLOATS:
            found = "float32"
        elif other == "int64" and (found == "bool" or (found == "int32" and not fits(value, found))):
            found = "int64"
    return found


def binary(op: str, *, compare: bool = False) -> Rule:
    def rule(lower: Lowering, dtype: str, a: Any, b: Any, **options: Any) -> Number:
        if options.get("alpha", 1) != 1:
            b = binary("mul")(lower, dtype, b, options["alpha"])
        meet = _common(lower, dtype, a, b) if compare else dtype
        return lower.add(op, dtype, lower.operand(a, meet), lower.operand(b, meet))

    return rule


def unary(op: str) -> Rule:
    return lambda lower, dtype, a: lower.add(op, dtype, lower.operand(a, dtype))


def _div(lower: Lowering, dtype: str, a: Any, b: Any, rounding_mode: str | None = None) -> Number:
    if rounding_mode == "floor":
        return lower.add("floordiv", dtype, lower.operand(a, dtype), lower.operand(b, dtype))
    if rounding_mode == "trunc":
        if dtype in FLOATS:
            return unary("trunc")(lower, dtype, _div(lower, dtype, a, b))
        sign = [unary("sign")(lower, dtype, x) for x in (a, b)]  # |a| // |b| with the sign of the exact quotient
        size = [unary("abs")(lower, dtype, x) for x in (a, b)]
        product = binary("mul")(lower, dtype, *sign)
        return binary("mul")(lower, dtype, _div(lower, dtype, *size, rounding_mode="floor"), product)
    return lower.add("div", dtype, lower.operand(a, dtype), lower.operand(b, dtype))


def _fmod(lower: Lowering, dtype: str, a: Any, b: Any) -> Number:
    quotient = _div(lower, dtype, a, b, rounding_mode="trunc")
    return binary("sub")(lower, dtype, a, binary("mul")(lower, dtype, quotient, b))


def where(lower: Lowering, dtype: str, condition: Any, a: Any, b: Any) -> Number:
    return lower.add("where", dtype, lower.operand(condition, "bool"), lower.operand(a, dtype), lower.operand(b, dtype))


def _clamp(lower: Lowering, dtype: str, a: Any, low: Any = None, high: Any = None, **named: Any) -> Number:
    result = Number(lower.operand(a, dtype))
    for bound, extremum, past in ((named.get("min", low), "max", "lt"), (named.get("max", high), "min", "gt")):
        if bound is None:
            continue
        if dtype in FLOATS:  # not an extremum: at the bound itself all of the gradient is the operand's
            result = beyond(lower, dtype, result, past, bound)
        else:
            result = binary(extremum)(lower, dtype, result, bound)
    return result


def beyond(lower: Lowering, dtype: str, a: Number, compare: str, bound: Any) -> Number:
    """``bound`` where ``a`` is beyond it, else ``a``, also where that is NaN."""
    other = lower.operand(bound, dtype)
    return lower.add("where", dtype, lower.add(compare, "bool", a.node, other).node, other, a.node)


def _extremum_of_numbers(op: str) -> Rule:
    """The smaller or larger one, of a number and NaN the number."""

    def rule(lower: Lowering, dtype: str, a: Any, b: Any) -> Number:
        x, y = lower.operand(a, dtype), lower.operand(b, dtype)
        if dtype not in FLOATS:
            return lower.add(op, dtype, x, y)
        no_y, no_x = (lower.add("ne", "bool", n, n).node for n in (y, x))
        rest = lower.add("where", dtype, no_x, y, lower.add(op, dtype, x, y).node)
        return lower.add("where", dtype, no_y, x, rest.node)

    return rule


def _cast(lower: Lowering, dtype: str, a: Any, *_: Any, **__: Any) -> Number:
    return Number(lower.operand(a, dtype))


def _logical(op: str) -> Rule:
    def rule(lower: Lowering, dtype: str, *operands: Any) -> Number:
        return lower.add(op, "bool", *(lower.operand(_truth(lower, o), "bool") for o in operands))

    return rule


def _truth(lower: Lowering, a: Any) -> Any:
    dtype = lower.dtype_of(a)
    return a if dtype == "bool" else lower.add("ne", "bool", lower.operand(a, dtype), lower.operand(0, dtype))


def _constant(value: float) -> Rule:
    return lambda lower, dtype, *_, **__: Number(lower.builder.const(value, dtype, lower.line))


def _full(lower: Lowering, dtype: str, size: Sequence[int], value: Any, **_: Any) -> Number:
    return Number(lower.operand(value, dtype))


def _rsub(lower: Lowering, dtype: str, a: Any, b: Any, alpha: float = 1) -> Number:
    return binary("sub")(lower, dtype, b, a if alpha == 1 else binary("mul")(lower, dtype, a, alpha))


def _square(lower: Lowering, dtype: str, a: Any) -> Number:
    x = lower.operand(a, dtype)
    return lower.add("mul", dtype, x, x)


def _pow(lower: Lowering, dtype: str, a: Any, b: Any) -> Number:
    if b == 2:
        return _square(lower, dtype, a)
    if b == 0.5:
        return unary("sqrt")(lower, dtype, a)
    if dtype not in FLOATS:
        return _whole_power(lower, dtype, a, b)
    return lower.add("pow", dtype, lower.operand(a, dtype), lower.operand(b, dtype))


def _whole_power(lower: Lowering, dtype: str, a: Any, b: Any) -> Number:
    """By squares and products, which wrap as PyTorch's powers of integers do; of 2 by a shift."""
    if isinstance(b, int) and b >= 0:
        result, square = Number(lower.operand(1, dtype)), Number(lower.operand(a, dtype))
        while b:
            if b % 2:
                result = binary("mul")(lower, dtype, result, square) if result.node != square.node else square
            b //= 2
            if b:
                square = _square(lower, dtype, square)
        return result
    if a == 2 and isinstance(b, Number):
        bits = torch.iinfo(getattr(torch, dtype)).bits
        exponent = Number(lower.operand(b, dtype))
        low = binary("ge", compare=True)(lower, "bool", exponent, 0)
        high = binary("lt", compare=True)(lower, "bool", exponent, bits)
        inside = binary("and")(lower, "bool", low, high)
        return where(lower, dtype, inside, binary("shl")(lower, dtype, 1, exponent), 0)
    raise lower.refuse("raises an integer to a power that is no number from 0 up: cast it to float, or multiply")


BASIC: dict[Any, Rule] = {
    aten.masked_fill: lambda lower, dtype, a, hidden, value: where(lower, dtype, hidden, value, a),
    aten.add: binary("add"), aten.sub: binary("sub"), aten.mul: binary("mul"), aten.rsub: _rsub, aten.div: _div,
    aten.floor_divide: lambda lower, dtype, a, b: _div(lower, dtype, a, b, rounding_mode="floor"),
    aten.true_divide: _div, aten.remainder: binary("mod"), aten.fmod: _fmod, aten.pow: _pow,
    aten.minimum: binary("min"), aten.maximum: binary("max"), aten.fmin: _extremum_of_numbers("min"),
    aten.fmax: _extremum_of_numbers("max"),
    aten.clamp: _clamp, aten.clip: _clamp,
    aten.clamp_min: lambda lower, dtype, a, low: _clamp(lower, dtype, a, low),
    aten.clamp_max: lambda lower, dtype, a, high: _clamp(lower, dtype, a, None, high),
    **{getattr(aten, op): binary(op, compare=True) for op in ("eq", "ne", "lt", "le", "gt", "ge")},
    aten.bitwise_and: binary("and"), aten.bitwise_or: binary("or"), aten.bitwise_xor: binary("xor"),
    aten.bitwise_not: unary("not"), aten.__lshift__: binary("shl"), aten.__rshift__: binary("shr"),
    aten.bitwise_left_shift: binary("shl"), aten.bitwise_right_shift: binary("shr"),
    aten.__and__: binary("and"), aten.__or__: binary("or"), aten.__xor__: binary("xor"),
    aten.logical_and: _logical("and"), aten.logical_or: _logical("or"), aten.logical_xor: _logical("xor"),
    aten.logical_not: _logical("not"), aten.where: where, aten.neg: unary("neg"), aten.abs: unary("abs"),
    aten.sign: unary("sign"), aten.sgn: unary("sign"),
    **{
        getattr(aten, op): unary(op)
        for op in (
            "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "sigmoid",
            "floor", "ceil", "round", "trunc",
        )
    },
    aten.square: _square,
    aten.to: _cast, aten._to_copy: _cast, aten.scalar_tensor: _cast,
    aten.ones_like: _constant(1), aten.zeros_like: _constant(0), aten.full: _full,
    aten.new_ones: _constant(1), aten.new_zeros: _constant(0), aten.ones: _constant(1), aten.zeros: _constant(0),
    aten.full_like: lambda lower, dtype, a, value, **_: Number(lower.operand(value, dtype)),
    aten.isnan: lambda lower, dtype, a: lower.add("ne", "bool", *[lower.operand(a, lower.dtype_of(a))] * 2),
}  # fmt: skip
"""By PyTorch's operation: ``rule(lower, dtype, *operands, **options)`` gives the node of a result of type ``dtype``."""
