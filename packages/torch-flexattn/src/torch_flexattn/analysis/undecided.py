"""Positions at which a read out of range decides what a mask says: the table is too short for the call.

Such a read gives 0, and what comes of it is no answer. Where another part of the mask has decided already
(``False & …``, ``True | …``, the branch of a ``where`` that is not taken), the read does not count.
"""

from __future__ import annotations

import functools

import torch

from ..errors import InputError
from ..filled import Mod
from ..mods import MaskMod
from ..program import Builder
from ..runs import by_rows, columns_of
from .exact_tiles import evaluate_tiles
from .geometry import Blocks, Geometry
from .index_bounds import reach
from .quadtree import classify

NAMES = ("b", "h", "q_idx", "kv_idx")


def refuse_undecided(mod: MaskMod, geometry: Geometry, *, suspected: bool = False) -> None:
    """Raise where reads out of range decide.

    Args:
        mod: the mask.
        geometry: its blocks.
        suspected: look only where the sizes alone tell that a table is too short for an index: elsewhere nothing is
            evaluated, so a GPU is not waited for.

    Raises:
        InputError: there is such a position; the message names it, and the tensor.
    """
    known = reach(mod, geometry.shape)
    if not known.short and (suspected or known.is_known):
        return
    wrong = undecided(mod).to(geometry.device)
    found, _ = classify(wrong, geometry)
    ptr, runs = by_rows(found, geometry.planes * geometry.rows, geometry.columns)
    row, column, _ = columns_of(ptr, runs)
    if not row.shape[0]:
        return
    block = Blocks.at(row[:1] // geometry.rows, row[:1] % geometry.rows, column[:1])
    at_q, at_kv = (torch.arange(size, device=geometry.device) for size in geometry.block)
    _, i, j = evaluate_tiles(wrong, geometry, block, at_q, at_kv)[0].nonzero()[0].tolist()
    batch, head = divmod(int(block.plane), geometry.shape[1])
    queries, keys = geometry.shape[2:]
    place = (batch, head, int(block.row) * geometry.block[0] + i, int(block.column) * geometry.block[1] + j)
    raise InputError(
        f"mask_mod reads {_tables(mod, geometry.shape)} out of range, and what it says depends on that, at "
        f"{', '.join(f'{name}={at}' for name, at in zip(NAMES, place))}: the call has {queries} queries and {keys} keys"
    ).at(place)


def _tables(mod: MaskMod, shape: tuple[int, int, int, int]) -> str:
    """The tables that are too short, as far as the sizes tell; else all."""
    shapes = [tuple(c.shape) for c in mod.captures]
    for table, dimension, (low, high) in reach(mod, shape).short:
        return f"a captured tensor of shape {shapes[table]} (from {low} to {high} along dimension {dimension})"
    return f"a captured tensor (of shape {', '.join(map(str, shapes))})"


def undecided(mod: Mod) -> MaskMod:
    """A mask that is True where a read out of range decides what ``mod`` says.

    Example:
        >>> from torch_flexattn.mods import mask_mod
        >>> ids, zero = torch.zeros(2), torch.tensor(0)
        >>> mask = mask_mod(lambda b, h, q_idx, kv_idx: (ids[q_idx] == 0) & (kv_idx < 1))
        >>> undecided(mask)(zero, zero, torch.tensor([1, 2])[:, None], torch.tensor([0, 1]))
        tensor([[False, False],
                [ True, False]])
    """
    build = Builder(mod.program.captures, mod.program.scalars)
    scalars = list(mod.scalars)
    numbers: list[int] = []
    open_: list[int | None] = []

    def op(name: str, *args: int) -> int:
        return build.add(name, "bool", *args)

    def either(*args: int | None) -> int | None:
        known = [a for a in args if a is not None]
        return functools.reduce(lambda a, b: op("or", a, b), known) if known else None

    def unless(of: int | None, other: int, of_other: int | None, settles: bool) -> int | None:
        """Where ``of`` is open, and the other side does not settle it by being ``settles`` for sure."""
        if of is None:
            return None
        unsettled = op("not", other) if settles else other
        return op("and", of, unsettled if of_other is None else op("or", unsettled, of_other))

    for node in mod.program.nodes:
        args, unsure = [numbers[a] for a in node.args], [open_[a] for a in node.args]
        number = build.add(node.op, node.dtype, *args, value=node.value, line=node.line)
        found = either(*unsure)
        if node.op == "gather":
            for index, size in zip(args, mod.captures[int(node.value or 0)].shape):
                dtype = build.nodes[index].dtype
                ends = []
                for end in (size, -size):
                    build.scalars.append(dtype)
                    scalars.append(end)
                    ends.append(build.add("scalar", dtype, value=len(scalars) - 1))
                found = either(found, op("ge", index, ends[0]), op("lt", index, ends[1]))
        elif node.op in ("and", "or") and node.dtype == "bool" and found is not None:
            settles = node.op == "or"
            found = either(
                unless(unsure[0], args[1], unsure[1], settles), unless(unsure[1], args[0], unsure[0], settles)
            )
        elif node.op == "where" and found is not None:
            taken = [
                None if of is None else op("and", of, chosen)
                for of, chosen in zip(unsure[1:], (args[0], op("not", args[0])))
            ]
            if unsure[0] is not None:  # which branch: it matters where they differ
                differ = op("xor" if node.dtype == "bool" else "ne", args[1], args[2])
                for other in unsure[1:]:
                    differ = differ if other is None else op("or", differ, other)
                taken.append(op("and", unsure[0], differ))
            found = either(*taken)
        numbers.append(number)
        open_.append(found)
    (output,) = (open_[o] for o in mod.program.outputs)
    if output is None:
        output = build.const(False, "bool")
    return MaskMod(build.finish([output]), mod.captures, tuple(scalars))
