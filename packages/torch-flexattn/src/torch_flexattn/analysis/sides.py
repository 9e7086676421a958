"""Divides a program into what depends on one index and what mixes both.

What depends on the query only (or the key only) is evaluated once for each of its values, whatever it computes, and
then summarised for each box. The exception are chains that only rise or only fall, such as ``q + 3`` or
``kv < length``: there the ends of a box say all, and nothing of the length of the sequence is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..program import INPUTS, Builder, Node, Program
from .float_interval import rounded
from .interval import LIMITS, Range, Truth, Value, leaves, run, unknown

RISING_OR_FALLING = ("add", "sub", "mul", "floordiv", "shr", "min", "max", "neg", "cast", "lt", "le", "gt", "ge", "not")
Side = str
"""``"q"``, ``"kv"``, or ``"plane"`` for what depends on batch and head at most."""


@dataclass(frozen=True)
class Sides:
    """How a program is evaluated on boxes.

    Attributes:
        program: the program.
        known: what each node can be over the whole mask; used where that is a single value.
        wraps: nodes whose integers may leave their type, as far as ``known`` tells.
        inner: nodes that are run on boxes, in order.
        outer: by side, nodes that are evaluated at every index of that side.
    """

    program: Program
    known: tuple[Value, ...]
    wraps: frozenset[int]
    inner: tuple[int, ...]
    outer: dict[Side, tuple[int, ...]]

    def is_plain_read(self, number: int, captures: Sequence[Tensor]) -> bool:
        """Whether a node is a captured tensor at the index of one side, in range throughout."""
        node = self.program.nodes[number]
        if node.op != "gather" or len(node.args) != 1 or self.program.nodes[node.args[0]].op not in ("q", "kv"):
            return False
        known: Any = self.known[node.args[0]]
        return known.high < captures[int(node.value or 0)].shape[0]

    def outer_program(self, side: Side) -> Program:
        """The program of the outer nodes of a side."""
        return _part(self.program, self.outer[side])


def divide(program: Program, scalars: Sequence[int | float | Tensor], shape: tuple[int, int, int, int]) -> Sides:
    """Divide a program for masks of ``shape`` (batches, heads, queries, keys; none of them 0)."""
    known, wraps = _survey(program, scalars, dict(zip(INPUTS, shape)))
    by_ends = _by_ends(program, known, wraps)
    inner: set[int] = set()
    outer: dict[Side, set[int]] = {}
    pending = [program.output]
    while pending:
        number = pending.pop()
        if is_single(known[number]) or number in inner:
            continue
        side = _side(program.dependencies[number])
        if side is None or number in by_ends:
            inner.add(number)
            pending += program.nodes[number].args
        else:
            outer.setdefault(side, set()).add(number)
    return Sides(program, known, wraps, tuple(sorted(inner)), {side: tuple(sorted(of)) for side, of in outer.items()})


def is_single(value: Value) -> bool:
    """Whether a value of the whole mask is one value."""
    if isinstance(value, Truth):
        return not (value.can_be_true and value.can_be_false)
    return bool(value.low == value.high)


def _survey(
    program: Program, scalars: Sequence[int | float | Tensor], sizes: dict[str, int]
) -> tuple[tuple[Value, ...], frozenset[int]]:
    """What each node can be in a mask of these sizes, and where integers may leave their type."""
    known: list[Value] = []
    wraps = set()
    for number, node in enumerate(program.nodes):
        if node.op in INPUTS:
            value: Value = Range(0, sizes[node.op] - 1)
        elif node.op == "const":
            value = _constant(node, node.value)
        elif node.op == "scalar":
            scalar = scalars[int(node.value or 0)]
            value = _constant(node, scalar.item() if isinstance(scalar, Tensor) else scalar)
        elif node.op == "gather":
            value = unknown(node.dtype)
        else:
            value = run(node, [known[a] for a in node.args])
        if leaves(node.dtype, value):
            wraps.add(number)
            value = unknown(node.dtype)
        known.append(value)
    return tuple(known), frozenset(wraps)


def _constant(node: Node, value: bool | int | float | None) -> Value:
    if node.dtype == "bool":
        return Truth(bool(value), not value)
    number = int(value) if node.dtype in LIMITS else rounded(float(value), node.dtype)  # type: ignore[arg-type]
    return Range(number, number)


def _by_ends(program: Program, known: Sequence[Value], wraps: frozenset[int]) -> frozenset[int]:
    """Nodes of one side that rise or fall with its index: the ends of a box give their ends."""
    found: set[int] = set()
    for number, node in enumerate(program.nodes):
        if node.op in ("q", "kv"):
            found.add(number)
            continue
        moving = [a for a in node.args if not is_single(known[a])]
        rising = node.op in RISING_OR_FALLING and len(moving) == 1 and moving[0] in found and number not in wraps
        if rising and _side(program.dependencies[number]) in ("q", "kv") and not _divides(node, moving[0]):
            found.add(number)
    return frozenset(found)


def _divides(node: Node, moving: int) -> bool:
    """Whether it divides by what moves, or divides floats: neither has a rule that is exact."""
    return node.op in ("floordiv", "shr") and (node.args[1] == moving or node.dtype not in LIMITS)


def _side(needs: frozenset[str]) -> Side | None:
    if {"q", "kv"} <= needs:
        return None
    return "q" if "q" in needs else "kv" if "kv" in needs else "plane"


@functools.lru_cache(maxsize=1024)
def _part(program: Program, outputs: tuple[int, ...]) -> Program:
    builder = Builder(program.captures, program.scalars)
    builder.nodes = list(program.nodes)
    return builder.finish(outputs)
