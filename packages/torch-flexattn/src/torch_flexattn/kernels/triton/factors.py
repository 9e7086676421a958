"""What multiplies a score throughout a call is gathered into one number, outside the loop over tiles.

``c · tanh(s / c)`` multiplies or divides every score four times on its way into the softmax: by the scale, by ``c``, by
``c`` again and by the logarithm that makes the softmax one in base 2. Two of these numbers can be one, as can the two
others. Values that do not depend on the score are left as they are written: what a mask compares must be what PyTorch
compares, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...program import Program

FLOAT = "float32"


@dataclass(frozen=True)
class Split:
    """A product, or a quotient, as what changes in a tile and what does not.

    Attributes:
        inner: the node that changes.
        factor: the node that does not.
        divides: whether the value is ``inner / factor``.
    """

    inner: int
    factor: int
    divides: bool


def split(program: Program, number: int) -> Split | None:
    """A value that depends on the score, times or over one that depends on batch and head at most; else ``None``."""
    node = program.nodes[number]
    if node.op not in ("mul", "div") or node.dtype != FLOAT:
        return None
    first, second = node.args
    if node.op == "div" and program.nodes[second].op == "const" and program.nodes[second].value == 0:
        return None  # no number to be divided by before the launch
    if _changes(program, first) and _is_fixed(program, second):
        return Split(first, second, node.op == "div")
    if node.op == "mul" and _changes(program, second) and _is_fixed(program, first):
        return Split(second, first, False)
    return None


def is_positive(program: Program | None, scalars: Sequence[int | float], scale: float) -> bool:
    """Whether the number that multiplies the result last is greater than 0, as far as is known before a launch.

    Then the greatest result is the greatest product, and need not be looked for among products.

    Args:
        program: the score modification, or ``None``.
        scalars: its numbers.
        scale: of the score itself.
    """
    if program is None:
        return scale > 0
    number, found = program.output, 1.0
    while (step := split(program, number)) is not None:
        node = program.nodes[step.factor]
        if node.op not in ("const", "scalar"):
            return False
        found *= _sign(node.value if node.op == "const" else scalars[int(node.value)])  # type: ignore[arg-type]
        number = step.inner
    return found * (_sign(scale) if program.nodes[number].op == "score" else 1.0) > 0


def _sign(value: float) -> float:
    return float(value > 0) - float(value < 0)


def _changes(program: Program, number: int) -> bool:
    return "score" in program.dependencies[number] and program.nodes[number].dtype == FLOAT


def _is_fixed(program: Program, number: int) -> bool:
    return program.dependencies[number] <= {"b", "h"} and program.nodes[number].dtype == FLOAT
