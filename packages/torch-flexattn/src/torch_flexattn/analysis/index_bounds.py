"""How far a mask reads into its captured tensors, from the sizes of a call alone: no tensor is looked at."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..filled import Mod
from ..program import Node, Program

Bounds = tuple[float, float]
"""Least and greatest value."""
OPERATIONS: dict[str, Callable[[Bounds, Bounds], Bounds]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}


class Reach(NamedTuple):
    """What is known of a mask's reads.

    Attributes:
        is_known: whether bounds of all indices are known.
        short: captured tensors with an index that leaves them, each with a dimension and the bounds of the index there.
    """

    is_known: bool
    short: tuple[tuple[int, int, Bounds], ...]


def reach(mod: Mod, shape: tuple[int, int, int, int]) -> Reach:
    """How far a mask reads.

    Args:
        mod: a mask, whose numbers do not wait for lengths, or a score modification.
        shape: batches, heads, queries, keys.

    Example:
        >>> import torch
        >>> from torch_flexattn.mods import mask_mod
        >>> ids = torch.arange(5)
        >>> reach(mask_mod(lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx // 2]), (1, 1, 12, 8)).short
        ((0, 0, (0, 11)),)
    """
    return _reach(mod.program, mod.scalars, tuple(tuple(c.shape) for c in mod.captures), shape)


@functools.lru_cache(maxsize=1024)
def sizes_at(program: Program, index: str, tables: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, int, int], ...]:
    """Dimensions of captured tensors that are read at an index of the call itself: tensor, dimension, its size.

    Args:
        program: of a mask or a score modification.
        index: ``"b"``, ``"h"``, ``"q"`` or ``"kv"``.
        tables: shapes of the captured tensors.
    """
    found = []
    for node in program.nodes if index in program.depends_on else ():
        if node.op == "gather":
            table = int(node.value or 0)
            for dimension, (size, of) in enumerate(zip(tables[table], node.args)):
                source = program.nodes[of]
                while source.op == "cast":
                    source = program.nodes[source.args[0]]
                if source.op == index:
                    found.append((table, dimension, size))
    return tuple(dict.fromkeys(found))


@functools.lru_cache(maxsize=1024)
def _reach(
    program: Program, scalars: Sequence[float], tables: tuple[tuple[int, ...], ...], shape: tuple[int, int, int, int]
) -> Reach:
    if 0 in shape:
        return Reach(True, ())
    found: list[Bounds | None] = []
    short, is_known = [], True
    for node in program.nodes:
        found.append(_bounds(node, found, scalars, shape))
        if node.op != "gather":
            continue
        table = int(node.value or 0)
        for dimension, (size, index) in enumerate(zip(tables[table], node.args)):
            of = found[index]
            if of is None:
                is_known = False
            elif of[0] < -size or of[1] >= size:
                short.append((table, dimension, of))
    return Reach(is_known, tuple(short))


def _bounds(
    node: Node, found: list[Bounds | None], scalars: Sequence[float], shape: tuple[int, int, int, int]
) -> Bounds | None:
    """Of an integer that can be bounded; ``None`` otherwise."""
    if not node.dtype.startswith("int"):
        return None
    if node.op in ("b", "h", "q", "kv"):
        return 0, shape[("b", "h", "q", "kv").index(node.op)] - 1
    if node.op in ("const", "scalar"):
        value = node.value if node.op == "const" else scalars[int(node.value or 0)]
        return (value, value) if isinstance(value, int | float) else None
    arguments = [found[a] for a in node.args]
    known = [a for a in arguments if a is not None]
    if not known or len(known) < len(arguments):
        return None
    if node.op == "cast":
        return known[0]
    if node.op in OPERATIONS:
        return OPERATIONS[node.op](known[0], known[1])
    if node.op == "floordiv" and known[1][0] == known[1][1] > 0:
        return known[0][0] // known[1][0], known[0][1] // known[1][0]
    return None
