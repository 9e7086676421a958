"""The operations that a program may use: what each takes, and how it is written in PyTorch.

Integers are int32 or int64, floats any of the four types. Operands of a binary operation have one type; the tracer
casts them as PyTorch would. ``floordiv`` and ``mod`` round towards minus infinity, as in Python; shifts are
arithmetic. ``detach`` is its operand, through which no gradient goes. ``tanh_approx`` is ``tanh``, but for an error of
up to 2⁻¹¹ of it where a machine has a faster one.
"""

from __future__ import annotations

from dataclasses import dataclass

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
UNARY_FLOAT = (
    "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "sigmoid",
    "floor", "ceil", "round", "trunc",
)  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """How many operands, and the PyTorch expression with ``{0}``, ``{1}``, … for them."""

    arity: int
    torch: str


_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>", "pow": "**",
}  # fmt: skip
OPERATIONS: dict[str, Operation] = {
    **{op: Operation(2, f"({{0}} {sign} {{1}})") for op, sign in _INFIX.items()},
    "floordiv": Operation(2, 'torch.div({0}, {1}, rounding_mode="floor")'),
    "mod": Operation(2, "torch.remainder({0}, {1})"),
    "min": Operation(2, "torch.minimum({0}, {1})"),
    "max": Operation(2, "torch.maximum({0}, {1})"),
    "neg": Operation(1, "(-{0})"),
    "not": Operation(1, "(~{0})"),
    "abs": Operation(1, "torch.abs({0})"),
    "sign": Operation(1, "torch.sign({0})"),
    "detach": Operation(1, "{0}.detach()"),
    "tanh_approx": Operation(1, "torch.tanh({0})"),
    **{op: Operation(1, f"torch.{op}({{0}})") for op in UNARY_FLOAT},
    "where": Operation(3, "torch.where({0}, {1}, {2})"),
}
