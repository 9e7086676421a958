"""What a mask or a score modification computes, as a program: a list of scalar operations in single assignment.

A program is written once a mod and read by everything that follows: analysis runs it on intervals, printers turn it
into PyTorch or Triton, its text is what ops, saved masks and caches carry. It holds no tensor and no value that may
change between calls: captured tensors and Python numbers are numbered places that are filled at run time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from .operations import OPERATIONS

INPUTS = ("b", "h", "q", "kv", "score", "grad")
"""Batch, query head, query and key index (int32), the scaled score, and, in derivatives, the gradient of the result."""
LEAVES = (*INPUTS, "const", "scalar", "gather")
DTYPES = {
    "bool": torch.bool, "int32": torch.int32, "int64": torch.int64, "float16": torch.float16,
    "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
Value = bool | int | float


@dataclass(frozen=True)
class Node:
    """One operation.

    Attributes:
        op: its name (see ``operations``).
        dtype: of its result, a key of :data:`DTYPES`.
        args: numbers of the nodes that it reads.
        value: of a ``const``; the number of the scalar that a ``scalar`` reads, or of the tensor that a ``gather``
            reads at the indices ``args``.
        line: ``file:line`` of the user's code, for messages; not part of what a program is.
    """

    op: str
    dtype: str
    args: tuple[int, ...] = ()
    value: Value | None = None
    line: str = field(default="", compare=False)

    def __str__(self) -> str:
        value = "" if self.value is None else f" {self.value!r}"
        return f"{self.op} {self.dtype}{value}{''.join(f' %{a}' for a in self.args)}"


@dataclass(frozen=True)
class Program:
    """Nodes, each after those it reads, and which of them are results.

    Attributes:
        nodes: the operations.
        outputs: numbers of the results: of a mask one bool, of a score modification one float.
        captures: ``dtype`` and number of dimensions of every captured tensor.
        scalars: dtype of every number that is filled in at run time: ``"int32"``, ``"int64"`` or ``"float32"``, …
    """

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    captures: tuple[tuple[str, int], ...] = ()
    scalars: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.nodes, self.outputs, self.captures, self.scalars))

    def __reduce__(self) -> tuple[Any, ...]:
        return Program, (self.nodes, self.outputs, self.captures, self.scalars)

    def prepared(self, make: Callable[[Program], Any]) -> Any:
        """What ``make`` made of the program, once."""
        made = self.__dict__.setdefault("_prepared", {})
        if make not in made:
            made[make] = make(self)
        return made[make]

    @property
    def output(self) -> int:
        (output,) = self.outputs
        return output

    @cached_property
    def text(self) -> str:
        """The program as text; :func:`parse` is the inverse."""
        lines = [f"captures {' '.join(f'{dtype}[{dims}]' for dtype, dims in self.captures)}".rstrip()]
        lines.append(f"scalars {' '.join(self.scalars)}".rstrip())
        lines += [f"%{number} = {node}" for number, node in enumerate(self.nodes)]
        lines.append(f"return {' '.join(f'%{o}' for o in self.outputs)}")
        return "\n".join(lines)

    @cached_property
    def key(self) -> str:
        """Digest of :attr:`text`: names what was generated from the program."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @cached_property
    def dependencies(self) -> tuple[frozenset[str], ...]:
        """Which of :data:`INPUTS` each node depends on."""
        found: list[frozenset[str]] = []
        for node in self.nodes:
            own = frozenset([node.op]) if node.op in INPUTS else frozenset()
            found.append(own.union(*(found[a] for a in node.args)))
        return tuple(found)

    @property
    def depends_on(self) -> frozenset[str]:
        """Which of :data:`INPUTS` the results depend on."""
        return frozenset().union(*(self.dependencies[o] for o in self.outputs))


def parse(text: str) -> Program:
    """Read what :attr:`Program.text` wrote.

    Raises:
        ValueError: text that no program has.

    Example:
        >>> causal = parse("captures\\nscalars\\n%0 = q int32\\n%1 = kv int32\\n%2 = ge bool %0 %1\\nreturn %2")
        >>> causal.depends_on == {"q", "kv"}
        True
    """
    try:
        first, second, *body, last = text.splitlines()
        captures = tuple((c.partition("[")[0], int(c.partition("[")[2][:-1])) for c in first.split()[1:])
        nodes = tuple(_node(line, number) for number, line in enumerate(body))
        program = Program(nodes, tuple(int(o[1:]) for o in last.split()[1:]), captures, tuple(second.split()[1:]))
    except (ValueError, IndexError) as error:
        raise ValueError(f"not the text of a program ({error}): {text[:200]!r}") from error
    if program.text != text or not _is_sound(program):
        raise ValueError(f"not the text of a program: {text[:200]!r}")
    return program


def _is_sound(program: Program) -> bool:
    """Whether every node is an operation with what it needs, of nodes before it."""
    kinds = (*(dtype for dtype, _ in program.captures), *program.scalars)
    sound = all(dtype in DTYPES for dtype in kinds) and all(dims >= 0 for _, dims in program.captures)
    outputs = bool(program.outputs) and all(0 <= o < len(program.nodes) for o in program.outputs)
    return sound and outputs and all(_is_sound_node(program, *place) for place in enumerate(program.nodes))


def _is_sound_node(program: Program, number: int, node: Node) -> bool:
    value, arity = node.value, 0
    if node.op == "const":
        wanted = bool if node.dtype == "bool" else int if node.dtype.startswith("int") else float
        sound = type(value) is wanted
    elif node.op in ("scalar", "gather"):
        places = program.scalars if node.op == "scalar" else program.captures
        sound = type(value) is int and 0 <= value < len(places)
        arity = program.captures[value][1] if sound and node.op == "gather" else 0  # type: ignore[index]
    else:
        sound = value is None and (node.op in INPUTS or node.op == "cast" or node.op in OPERATIONS)
        arity = 0 if node.op in INPUTS else 1 if node.op == "cast" else OPERATIONS[node.op].arity if sound else 0
    return sound and len(node.args) == arity and all(0 <= a < number for a in node.args)


def _node(line: str, number: int) -> Node:
    name, _, rest = line.partition(" = ")
    op, dtype, *parts = rest.split(" ")
    if name != f"%{number}" or dtype not in DTYPES:
        raise ValueError(line)
    args = tuple(int(p[1:]) for p in parts if p.startswith("%"))
    values = [p for p in parts if not p.startswith("%")]
    return Node(op, dtype, args, _value(values[0]) if values else None)


def _value(text: str) -> Value:
    if text in ("True", "False"):
        return text == "True"
    return float(text) if text in ("inf", "-inf", "nan") else json.loads(text)


class Builder:
    """Collects nodes; equal ones become one, and operations on constants are done at once."""

    def __init__(self, captures: Sequence[tuple[str, int]] = (), scalars: Sequence[str] = ()) -> None:
        self.nodes: list[Node] = []
        self.captures, self.scalars = list(captures), list(scalars)
        self._numbers: dict[tuple[Node, type, str], int] = {}

    def add(self, op: str, dtype: str, *args: int, value: Value | None = None, line: str = "") -> int:
        """The number of this node, which is appended unless it is there."""
        node = Node(op, dtype, args, value, line)
        key = (node, type(value), repr(value))  # 0.0 is not -0.0, 1 is not True
        if key not in self._numbers:
            self._numbers[key] = len(self.nodes)
            self.nodes.append(node)
        return self._numbers[key]

    def const(self, value: Value, dtype: str, line: str = "") -> int:
        typed = bool(value) if dtype == "bool" else int(value) if dtype.startswith("int") else float(value)
        return self.add("const", dtype, value=typed, line=line)

    def cast(self, a: int, dtype: str, line: str = "") -> int:
        """``a`` in another type; itself where it has that type."""
        node = self.nodes[a]
        if node.dtype == dtype:
            return a
        if node.op == "scalar":  # the number itself, made that type
            return self.add("scalar", dtype, value=node.value, line=line)
        if node.op == "const" and node.value is not None and _stays(node, dtype):
            return self.const(node.value if dtype != "float32" else _float32(node.value), dtype, line)
        return self.add("cast", dtype, a, line=line)

    def inline(
        self,
        program: Program,
        captures: Sequence[int],
        scalars: Sequence[int],
        replaced: Mapping[str, int] | None = None,
        filled: Mapping[int, int] | None = None,
    ) -> list[int]:
        """Append the nodes of ``program``, its captures and scalars renumbered; the numbers of its outputs.

        ``replaced``: nodes that stand for its inputs, by name; ``filled``: nodes that stand for its scalars.
        """
        numbers: list[int] = []
        for node in program.nodes:
            if replaced and node.op in replaced:
                numbers.append(self.cast(replaced[node.op], node.dtype, node.line))
                continue
            if filled and node.op == "scalar" and int(node.value or 0) in filled:
                numbers.append(self.cast(filled[int(node.value or 0)], node.dtype, node.line))
                continue
            value = node.value
            if node.op in ("gather", "scalar"):
                value = (captures if node.op == "gather" else scalars)[int(value)]  # type: ignore[arg-type]
            args = (numbers[a] for a in node.args)
            numbers.append(self.add(node.op, node.dtype, *args, value=value, line=node.line))
        return [numbers[o] for o in program.outputs]

    def finish(self, outputs: Iterable[int]) -> Program:
        """The program of ``outputs``, without what they do not need."""
        outputs = list(outputs)
        needed = set(outputs)
        for number in reversed(range(len(self.nodes))):
            if number in needed:
                needed.update(self.nodes[number].args)
        order = sorted(needed)
        place = {number: k for k, number in enumerate(order)}
        nodes = []
        for number in order:
            node = self.nodes[number]
            nodes.append(Node(node.op, node.dtype, tuple(place[a] for a in node.args), node.value, node.line))
        return Program(tuple(nodes), tuple(place[o] for o in outputs), tuple(self.captures), tuple(self.scalars))


def _stays(const: Node, dtype: str) -> bool:
    """Whether a constant is known in another type without asking PyTorch how it rounds or wraps."""
    if not dtype.startswith("int"):
        return dtype not in ("float16", "bfloat16")
    return not const.dtype.startswith(("float", "bfloat")) and -(2**31) <= const.value < 2**31  # type: ignore[operator]


def _float32(value: Value) -> float:
    return torch.tensor(float(value), dtype=torch.float32).item()
