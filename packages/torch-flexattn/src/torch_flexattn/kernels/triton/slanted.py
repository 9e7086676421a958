"""Reads whose place moves by a fixed step with the query and with the key: one test serves a whole tile.

``table[h, q_idx - kv_idx + n]`` and ``bias[b, h, q_idx, kv_idx]`` are such reads. Whether all of a tile lies inside the
tensor follows from its corners; where it does, no index is looked at again, and addresses are sums of a number for the
tile, one for the row and one for the column.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ...filled import Mod
from ...program import Node, Program


@dataclass(frozen=True)
class Box:
    """A tile, in the words of the source.

    Attributes:
        q: the first query and the last.
        kv: the first key and the last.
        q_places: int64, of each query of the tile, from 0, in a shape that broadcasts to the tile.
        kv_places: of each key.
    """

    q: tuple[str, str]
    kv: tuple[str, str]
    q_places: str
    kv_places: str


@dataclass(frozen=True)
class Slope:
    """An index: ``base + q_step · q + kv_step · kv``; ``base`` is one number for the tile."""

    base: str
    q_step: int
    kv_step: int


def slope(program: Program, number: int, values: Sequence[str]) -> Slope | None:
    """What node ``number`` is as a :class:`Slope`, ``values`` the names of the values; ``None`` if it is none."""
    node = program.nodes[number]
    if node.op in ("q", "kv"):
        return Slope("0", int(node.op == "q"), int(node.op == "kv"))
    if program.dependencies[number] <= {"b", "h"}:
        return Slope(values[number], 0, 0)
    if node.op == "cast" and node.dtype in ("int32", "int64"):
        return slope(program, node.args[0], values)
    if node.op not in ("add", "sub", "mul", "neg"):
        return None
    parts = [slope(program, a, values) for a in node.args]
    if any(p is None for p in parts):
        return None
    first, *others = (p for p in parts if p is not None)
    if node.op == "neg":
        return Slope(f"(-{first.base})", -first.q_step, -first.kv_step)
    (second,) = others
    if node.op == "mul":
        return _scaled(first, second, program.nodes[node.args[1]]) or _scaled(
            second, first, program.nodes[node.args[0]]
        )
    sign = 1 if node.op == "add" else -1
    base = f"({first.base} {'+' if sign > 0 else '-'} {second.base})"
    return Slope(base, first.q_step + sign * second.q_step, first.kv_step + sign * second.kv_step)


def _scaled(of: Slope, by: Slope, node: Node) -> Slope | None:
    if node.op != "const" or by.q_step or by.kv_step:
        return None
    factor = int(node.value)  # type: ignore[arg-type]
    return Slope(f"({of.base} * {factor})", of.q_step * factor, of.kv_step * factor)


def slanted_read(name: str, capture: str, indices: Sequence[Slope], box: Box, otherwise: str) -> list[str]:
    """Statements that read into ``name``; ``otherwise`` reads any tile."""
    inside, start, row, column = [], [], [], []
    for dim, index in enumerate(indices):
        low, high = (
            f"{index.base} + {index.q_step} * ({box.q[at if index.q_step >= 0 else 1 - at]})"
            f" + {index.kv_step} * ({box.kv[at if index.kv_step >= 0 else 1 - at]})"
            for at in (0, 1)
        )
        inside.append(f"({low} >= 0) & ({high} < {capture}_n{dim})")
        first = f"{index.base} + {index.q_step} * ({box.q[0]}) + {index.kv_step} * ({box.kv[0]})"
        start.append(f"tl.cast({first}, tl.int64) * {capture}_s{dim}")
        row += [f"{index.q_step} * {capture}_s{dim}"] * (index.q_step != 0)
        column += [f"{index.kv_step} * {capture}_s{dim}"] * (index.kv_step != 0)
    address = f"{capture} + ({' + '.join(start)}) + {box.q_places} * ({' + '.join(row)})"
    read = f"    {name} = tl.load({address} + {box.kv_places} * ({' + '.join(column)}))"
    return [
        "if INSIDE:",
        read,
        f"elif {' & '.join(inside)}:",
        read,
        "else:",
        f"    {name} = {otherwise}",
    ]


def all_inside(
    mods: Sequence[Mod | None], q: Tensor, k: Tensor, q_offset: Tensor | int, rows: int, columns: int
) -> bool:
    """Whether all such reads of a call lie inside their tensors, in whole tiles of ``rows`` and ``columns``."""
    if isinstance(q_offset, Tensor):
        return False
    shape = (q.shape[0], q.shape[1], -(-q.shape[2] // rows) * rows, -(-k.shape[2] // columns) * columns)
    return all(
        _inside(mod.program, mod.scalars, tuple(tuple(c.shape) for c in mod.captures), shape, q_offset)
        for mod in mods
        if mod is not None and mod.captures
    )


@functools.lru_cache(maxsize=1024)
def _inside(
    program: Program,
    scalars: tuple[int | float, ...],
    sizes: tuple[tuple[int, ...], ...],
    shape: tuple[int, int, int, int],
    first: int,
) -> bool:
    batches, heads, queries, keys = shape
    ranges = {"b": (0, batches - 1), "h": (0, heads - 1), "q": (first, first + queries - 1), "kv": (0, keys - 1)}
    for node, depends in zip(program.nodes, program.dependencies, strict=True):
        if node.op == "gather" and depends >= {"q", "kv"}:
            for index, size in zip(node.args, sizes[int(node.value)], strict=True):  # type: ignore[arg-type]
                span = _span(program, index, ranges, scalars)
                if span is None or span[0] < 0 or span[1] >= size:
                    return False
    return True


def _span(
    program: Program, number: int, ranges: dict[str, tuple[int, int]], scalars: Sequence[int | float]
) -> tuple[int, int] | None:
    """The least and the largest value of an index."""
    node = program.nodes[number]
    if node.op in ranges:
        return ranges[node.op]
    if node.op in ("const", "scalar"):
        value = node.value if node.op == "const" else scalars[int(node.value)]  # type: ignore[arg-type]
        return (value, value) if isinstance(value, int) else None
    if node.op not in ("add", "sub", "mul", "neg", "cast"):
        return None
    spans = [_span(program, a, ranges, scalars) for a in node.args]
    if any(s is None for s in spans):
        return None
    (low, high), *others = (s for s in spans if s is not None)
    if node.op == "cast":
        return low, high
    if node.op == "neg":
        return -high, -low
    ((least, most),) = others
    if node.op == "add":
        return low + least, high + most
    if node.op == "sub":
        return low - most, high - least
    products = (low * least, low * most, high * least, high * most)
    return min(products), max(products)
