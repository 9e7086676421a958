"""Functions that are made of several operations: activations, and what a program has no operation for.

Values and gradients are PyTorch's, also at bounds and at infinities: an operand that would overflow where it does not
count is replaced there, since 0 · ∞ is no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .rules import BASIC, FLOATS, Number, Rule, beyond, binary, unary, where

if TYPE_CHECKING:
    from .lowering import Lowering

aten = torch.ops.aten


def _math(build: Callable[[Callable[..., Any], Any], Any]) -> Rule:
    """A composite of one operand: ``build(apply, x)``, ``apply(op, *operands)`` in the type of the result."""

    def rule(lower: Lowering, dtype: str, a: Any, *_: Any, **__: Any) -> Number:
        def apply(op: str, *operands: Any) -> Number:
            return lower.add(op, dtype, *(lower.operand(o, dtype) for o in operands))

        return build(apply, Number(lower.operand(a, dtype)))

    return rule


def _gelu(lower: Lowering, dtype: str, a: Any, approximate: str = "none") -> Number:
    def exact(f: Any, x: Any) -> Any:
        return f("mul", f("mul", x, 0.5), f("add", f("erf", f("mul", x, math.sqrt(0.5))), 1.0))

    def by_tanh(f: Any, x: Any) -> Any:
        cubic = f("add", x, f("mul", f("mul", f("mul", x, x), x), 0.044715))
        return f("mul", f("mul", x, 0.5), f("add", f("tanh", f("mul", cubic, math.sqrt(2 / math.pi))), 1.0))

    return _math(exact if approximate == "none" else by_tanh)(lower, dtype, a)


def _softplus(lower: Lowering, dtype: str, a: Any, beta: float = 1.0, threshold: float = 20.0) -> Number:
    x = Number(lower.operand(a, dtype))
    scaled = binary("mul")(lower, dtype, x, float(beta))
    linear = lower.add("gt", "bool", lower.operand(scaled, dtype), lower.operand(float(threshold), dtype))
    small = where(lower, dtype, linear, 0.0, scaled)  # exp of a large one would make the gradient 0 · ∞
    soft = unary("log1p")(lower, dtype, unary("exp")(lower, dtype, small))
    return where(lower, dtype, linear, x, binary("div")(lower, dtype, soft, float(beta)))


def _leaky(lower: Lowering, dtype: str, a: Any, slope: float = 0.01) -> Number:
    x = Number(lower.operand(a, dtype))
    positive = lower.add("gt", "bool", x.node, lower.operand(0.0, dtype))
    return where(lower, dtype, positive, x, binary("mul")(lower, dtype, x, slope))


def _relu(lower: Lowering, dtype: str, a: Any) -> Number:
    x = Number(lower.operand(a, dtype))
    return beyond(lower, dtype, x, "le", 0.0) if dtype in FLOATS else binary("max")(lower, dtype, x, 0)


def _hardtanh(lower: Lowering, dtype: str, a: Any, low: float = -1.0, high: float = 1.0) -> Number:
    """At the bounds themselves the gradient is 0."""
    return beyond(lower, dtype, beyond(lower, dtype, Number(lower.operand(a, dtype)), "le", low), "ge", high)


def _hardsigmoid(lower: Lowering, dtype: str, a: Any) -> Number:
    inside = _hardtanh(lower, dtype, binary("add")(lower, dtype, a, 3.0), 0.0, 6.0)
    return binary("div")(lower, dtype, inside, 6.0)


def _hardswish(lower: Lowering, dtype: str, a: Any) -> Number:
    x = Number(lower.operand(a, dtype))
    whole = binary("mul")(lower, dtype, x, binary("div")(lower, dtype, binary("add")(lower, dtype, x, 3.0), 6.0))
    low, high = (lower.add(op, "bool", x.node, lower.operand(at, dtype)) for op, at in (("le", -3.0), ("ge", 3.0)))
    return where(lower, dtype, low, 0.0, where(lower, dtype, high, x, whole))


def _elu(
    lower: Lowering, dtype: str, a: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Number:
    x = Number(lower.operand(a, dtype))
    positive = lower.add("gt", "bool", x.node, lower.operand(0.0, dtype))
    small = binary("mul")(lower, dtype, where(lower, dtype, positive, 0.0, x), float(input_scale))
    negative = binary("mul")(lower, dtype, unary("expm1")(lower, dtype, small), float(alpha * scale))
    return where(lower, dtype, positive, binary("mul")(lower, dtype, x, float(scale)), negative)


def _threshold(lower: Lowering, dtype: str, a: Any, threshold: float, value: float) -> Number:
    x = Number(lower.operand(a, dtype))
    below = lower.add("le", "bool", x.node, lower.operand(threshold, dtype))
    return where(lower, dtype, below, value, x)


def _logaddexp(lower: Lowering, dtype: str, a: Any, b: Any) -> Number:
    x, y = (Number(lower.operand(o, dtype)) for o in (a, b))
    equal = lower.add("eq", "bool", x.node, y.node)  # also where both are the same infinity
    gap = unary("abs")(lower, dtype, binary("sub")(lower, dtype, x, y))
    below = where(lower, dtype, equal, 0.0, unary("neg")(lower, dtype, gap))
    rest = unary("log1p")(lower, dtype, unary("exp")(lower, dtype, below))
    return binary("add")(lower, dtype, binary("max")(lower, dtype, x, y), rest)


def _lerp(lower: Lowering, dtype: str, a: Any, b: Any, weight: Any) -> Number:
    return binary("add")(lower, dtype, a, binary("mul")(lower, dtype, weight, binary("sub")(lower, dtype, b, a)))


def _add_scaled(op: str) -> Rule:
    """``a + value · op(b, c)``."""

    def rule(lower: Lowering, dtype: str, a: Any, b: Any, c: Any, value: float = 1) -> Number:
        scaled = b if value == 1 else binary("mul")(lower, dtype, b, value)
        return binary("add")(lower, dtype, a, binary(op)(lower, dtype, scaled, c))

    return rule


def _is_infinite(lower: Lowering, dtype: str, a: Any) -> Number:
    own = lower.dtype_of(a)
    if own not in FLOATS:
        return Number(lower.builder.const(False, "bool", lower.line))
    return lower.add("eq", "bool", unary("abs")(lower, own, a).node, lower.operand(math.inf, own))


def _nan_to_num(
    lower: Lowering,
    dtype: str,
    a: Any,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Number:
    x = Number(lower.operand(a, dtype))
    if dtype not in FLOATS:
        return x
    most = torch.finfo(getattr(torch, dtype)).max
    found = where(lower, dtype, lower.add("ne", "bool", x.node, x.node), 0.0 if nan is None else nan, x)
    for infinity, value in (
        (math.inf, most if posinf is None else posinf),
        (-math.inf, -most if neginf is None else neginf),
    ):
        at = lower.add("eq", "bool", x.node, lower.operand(infinity, dtype))
        found = where(lower, dtype, at, value, found)
    return found


def _hyperbolic(sign: str) -> Rule:
    """``(exp(x) ± exp(-x)) / 2``; by ``expm1`` the difference keeps its digits near 0."""
    function = "expm1" if sign == "sub" else "exp"
    return _math(lambda f, x: f("mul", f(sign, f(function, x), f(function, f("neg", x))), 0.5))


RULES: dict[Any, Rule] = {
    **BASIC,
    aten.relu: _relu, aten.leaky_relu: _leaky, aten.gelu: _gelu, aten.softplus: _softplus, aten.elu: _elu,
    aten.hardtanh: _hardtanh, aten.hardsigmoid: _hardsigmoid, aten.hardswish: _hardswish, aten.threshold: _threshold,
    aten.celu: lambda lower, dtype, a, alpha=1.0: _elu(lower, dtype, a, alpha, 1.0, 1.0 / alpha),
    aten.silu: _math(lambda f, x: f("mul", x, f("sigmoid", x))),
    aten.mish: lambda lower, dtype, a: binary("mul")(
        lower, dtype, a, unary("tanh")(lower, dtype, _softplus(lower, dtype, a))
    ),
    aten.reciprocal: _math(lambda f, x: f("div", 1.0, x)),
    aten.tan: _math(lambda f, x: f("div", f("sin", x), f("cos", x))),
    aten.sinh: _hyperbolic("sub"), aten.cosh: _hyperbolic("add"),
    aten.log10: _math(lambda f, x: f("mul", f("log", x), 1 / math.log(10))),
    aten.frac: _math(lambda f, x: f("sub", x, f("trunc", x))),
    aten.logaddexp: _logaddexp, aten.lerp: _lerp, aten.addcmul: _add_scaled("mul"), aten.addcdiv: _add_scaled("div"),
    aten.isinf: _is_infinite, aten.nan_to_num: _nan_to_num,
}  # fmt: skip
"""All operations of PyTorch that a mod may use."""
