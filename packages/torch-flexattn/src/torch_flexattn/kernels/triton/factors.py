"""What multiplies a score throughout a call is gathered into one number, outside the loop over tiles.

``c · tanh(s / c)`` multiplies or divides every score four times on its way into the softmax: by the scale, by ``c``, by
``c`` again and by the logarithm that makes the softmax one in base 2. Two of these numbers can be one, as can the two
others. Values that do not depend on the score are left as they are written: what a mask compares must be what PyTorch
compares, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...program import Program

FLOAT = "float32"
WITHIN_ONE = ("tanh", "tanh_approx", "sin", "cos", "erf", "sigmoid")
"""Operations whose results are from -1 to 1."""


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


def last_factor(program: Program | None, scalars: Sequence[int | float], scale: float) -> tuple[float, str] | None:
    """The number that multiplies the result last, and the operation that gives what it multiplies.

    Args:
        program: the score modification, or ``None``.
        scalars: its numbers.
        scale: of the score itself.

    Returns:
        ``None`` where a captured tensor has part in the number: it is not known before a launch.
    """
    if program is None:
        return scale, "score"
    number, found = program.output, 1.0
    while (step := split(program, number)) is not None:
        node = program.nodes[step.factor]
        if node.op not in ("const", "scalar"):
            return None
        value = float(node.value if node.op == "const" else scalars[int(node.value)])  # type: ignore[arg-type]
        found, number = _times(found, value, divides=step.divides), step.inner
    last = program.nodes[number].op
    return found * (scale if last == "score" else 1.0), last


def is_positive(program: Program | None, scalars: Sequence[int | float], scale: float) -> bool:
    """Whether that number is greater than 0: then the greatest product is the greatest of what it multiplies."""
    found = last_factor(program, scalars, scale)
    return found is not None and found[0] > 0


def bound(program: Program | None, scalars: Sequence[int | float]) -> float:
    """What no score exceeds, whatever its sign; infinite where that is not known.

    Example:
        >>> from torch_flexattn.scores import softcap
        >>> bound(softcap(20.0).program, softcap(20.0).scalars)
        20.0
    """
    found = None if program is None else last_factor(program, scalars, 1.0)
    return abs(found[0]) if found is not None and found[1] in WITHIN_ONE else math.inf


def _times(number: float, value: float, *, divides: bool) -> float:
    if divides:
        return number / value if value else math.nan
    return number * value


def _changes(program: Program, number: int) -> bool:
    return "score" in program.dependencies[number] and program.nodes[number].dtype == FLOAT


def _is_fixed(program: Program, number: int) -> bool:
    return program.dependencies[number] <= {"b", "h"} and program.nodes[number].dtype == FLOAT
