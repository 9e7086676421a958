"""The derivative of a score modification, as a program: what a backward kernel runs beside the modification itself.

Reverse mode, node by node, on the list. The derivative of a read from a captured tensor is an addition to that place of
its gradient (a scatter); of how many places, and how they are added without contention, kernels decide from what the
indices depend on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .program import Builder, Program

FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Scatter:
    """What is added to the gradient of a captured tensor.

    Attributes:
        capture: number of the tensor.
        indices: numbers of the outputs that are the indices, one a dimension.
        value: number of the output that is added.
    """

    capture: int
    indices: tuple[int, ...]
    value: int


@dataclass(frozen=True)
class Derivative:
    """A program over ``score``, the indices and the gradient of the result.

    Attributes:
        program: its outputs: the modified score, the gradient of ``score``, then indices and values of the scatters.
            The gradient of the result is the input ``grad``.
        scatters: the additions to gradients of captured tensors.
    """

    program: Program
    scatters: tuple[Scatter, ...]


def differentiate(program: Program, captures: Sequence[bool]) -> Derivative:
    """The derivative of a program of one float output.

    Args:
        program: of a score modification.
        captures: which captured tensors need a gradient.
    """
    builder = Builder(program.captures, program.scalars)
    outputs = builder.inline(program, range(len(program.captures)), range(len(program.scalars)))
    forward = list(builder.nodes)
    (result,) = outputs
    dtype = forward[result].dtype
    gradients: dict[int, int] = {result: builder.add("grad", dtype)}
    needed = _needed(forward, captures)
    scatters: list[tuple[int, tuple[int, ...], int]] = []
    for number in reversed(range(len(forward))):
        gradient, node = gradients.get(number), forward[number]
        if gradient is None or not needed[number]:
            continue
        if node.op == "gather":
            scatters.append((int(node.value), node.args, gradient))  # type: ignore[arg-type]
            continue
        if node.op in ("score", "const", "scalar"):
            continue
        tape = _Tape(builder, number, node.args, node.dtype, gradient)
        for arg, part in zip(node.args, RULES[node.op](tape), strict=True):
            if part is None or not needed[arg]:
                continue
            part = builder.cast(part, forward[arg].dtype)
            known = gradients.get(arg)
            gradients[arg] = part if known is None else builder.add("add", forward[arg].dtype, known, part)
    scores = [n for n, node in enumerate(forward) if node.op == "score"]
    score_dtype = forward[scores[0]].dtype if scores else dtype
    of_score = gradients.get(scores[0]) if scores else None
    results = [result, builder.const(0.0, score_dtype) if of_score is None else of_score]
    placed = []
    for capture, indices, value in scatters:
        first = len(results)
        results += [*indices, value]
        placed.append(Scatter(capture, tuple(range(first, first + len(indices))), first + len(indices)))
    return Derivative(builder.finish(results), tuple(placed))


def _needed(nodes: Sequence, captures: Sequence[bool]) -> list[bool]:
    """Which nodes a gradient has to reach: floats computed from ``score`` or from a tensor that needs one."""
    needed: list[bool] = []
    for node in nodes:
        if node.op == "gather":
            own = captures[int(node.value)]
        else:
            own = node.op == "score" or (node.op != "detach" and any(needed[a] for a in node.args))
        needed.append(own and node.dtype in FLOATS)
    return needed


class _Tape:
    """What a rule sees: the operands ``x``, the result ``y`` and its gradient ``g``, and how to compute with them."""

    def __init__(self, builder: Builder, y: int, x: tuple[int, ...], dtype: str, g: int) -> None:
        self._builder, self.y, self.x, self._dtype, self.g = builder, y, x, dtype, g

    def __call__(self, op: str, *operands: int | float) -> int:
        numbers = [o if isinstance(o, int) else self._builder.const(o, self._dtype) for o in operands]
        return self._builder.add(op, self._dtype, *numbers)

    def compare(self, op: str, a: int, b: int | float) -> int:
        number = b if isinstance(b, int) else self._builder.const(b, self._dtype)
        return self._builder.add(op, "bool", a, number)

    def where(self, condition: int, a: int | float, b: int | float) -> int:
        numbers = [o if isinstance(o, int) else self._builder.const(o, self._dtype) for o in (a, b)]
        return self._builder.add("where", self._dtype, condition, *numbers)


Rule = Callable[[_Tape], Sequence[int | None]]


def _times(factor: Callable[[_Tape], int | float]) -> Rule:
    """Of one operand, with the derivative ``factor``."""
    return lambda t: [t("mul", t.g, factor(t))]


def _no_gradient(count: int) -> Rule:
    return lambda t: [None] * count


def _pow(t: _Tape) -> Sequence[int | None]:
    base, exponent = t.x
    of_base = t("mul", t.g, t("mul", exponent, t("pow", base, t("sub", exponent, 1.0))))
    of_base = t.where(t.compare("eq", exponent, 0.0), 0.0, of_base)
    of_exponent = t("mul", t.g, t("mul", t.y, t("log", base)))
    at_zero = t._builder.add("and", "bool", t.compare("eq", base, 0.0), t.compare("ge", exponent, 0.0))
    return [of_base, t.where(at_zero, 0.0, of_exponent)]


def _extremum(op: str) -> Rule:
    def rule(t: _Tape) -> Sequence[int | None]:
        half = t("mul", t.g, 0.5)
        tie = t.compare("eq", *t.x)
        first = t.compare(op, *t.x)
        return [
            t.where(tie, half, t.where(first, t.g, 0.0)),
            t.where(tie, half, t.where(first, 0.0, t.g)),
        ]

    return rule


def _mod(t: _Tape) -> Sequence[int | None]:
    return [t.g, t("neg", t("mul", t.g, t("floor", t("div", *t.x))))]


RULES: dict[str, Rule] = {
    "cast": lambda t: [t.g],
    "add": lambda t: [t.g, t.g],
    "sub": lambda t: [t.g, t("neg", t.g)],
    "mul": lambda t: [t("mul", t.g, t.x[1]), t("mul", t.g, t.x[0])],
    "div": lambda t: [t("div", t.g, t.x[1]), t("neg", t("mul", t.g, t("div", t.y, t.x[1])))],
    "floordiv": _no_gradient(2),
    "mod": _mod,
    "pow": _pow,
    "min": _extremum("lt"),
    "max": _extremum("gt"),
    "neg": lambda t: [t("neg", t.g)],
    "abs": _times(lambda t: t("sign", t.x[0])),
    "sign": _no_gradient(1),
    "where": lambda t: [None, t.where(t.x[0], t.g, 0.0), t.where(t.x[0], 0.0, t.g)],
    "exp": _times(lambda t: t.y),
    "exp2": _times(lambda t: t("mul", t.y, math.log(2))),
    "expm1": _times(lambda t: t("add", t.y, 1.0)),
    "log": lambda t: [t("div", t.g, t.x[0])],
    "log2": lambda t: [t("div", t.g, t("mul", t.x[0], math.log(2)))],
    "log1p": lambda t: [t("div", t.g, t("add", t.x[0], 1.0))],
    "sqrt": lambda t: [t("div", t.g, t("mul", t.y, 2.0))],
    "rsqrt": _times(lambda t: t("mul", t("mul", t.y, t("mul", t.y, t.y)), -0.5)),
    "sin": _times(lambda t: t("cos", t.x[0])),
    "cos": _times(lambda t: t("neg", t("sin", t.x[0]))),
    **dict.fromkeys(("tanh", "tanh_approx"), _times(lambda t: t("sub", 1.0, t("mul", t.y, t.y)))),
    "erf": _times(lambda t: t("mul", t("exp", t("neg", t("mul", t.x[0], t.x[0]))), 2 / math.sqrt(math.pi))),
    "sigmoid": _times(lambda t: t("mul", t.y, t("sub", 1.0, t.y))),
    "floor": _no_gradient(1), "ceil": _no_gradient(1), "round": _no_gradient(1), "trunc": _no_gradient(1),
}  # fmt: skip
"""For each operation on floats, the gradients of its operands (``None``: it has none)."""
