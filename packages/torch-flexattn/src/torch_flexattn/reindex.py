"""A mask seen from other indices: shifted, of chosen batches and heads, of chosen rows of blocks.

The program is kept, with other nodes in the places of its inputs. Offsets are numbers that are filled in at run time,
so a mask shifted by another offset is the same program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .mods import Assembly, MaskMod
from .program import Builder


@dataclass(frozen=True)
class Offset:
    """Index ``i`` of the new mask is ``i + by`` of the old."""

    by: int


@dataclass(frozen=True)
class Always:
    """Every index of the new mask is ``index`` of the old."""

    index: int


@dataclass(frozen=True)
class Chosen:
    """Groups of ``size`` indices: group ``g`` of the new mask is group ``groups[g]`` of the old."""

    groups: Tensor
    size: int = 1


Change = Offset | Always | Chosen


def reindexed(mod: MaskMod, changes: Mapping[str, Change]) -> MaskMod:
    """A mask with other indices.

    Args:
        mod: the mask.
        changes: by input (``b``, ``h``, ``q``, ``kv``), which index of the old mask one of the new is.
    """
    changes = {name: change for name, change in changes.items() if name in mod.dependencies and change != Offset(0)}
    if not changes:
        return mod
    parts = Assembly()
    replaced = {name: _node(parts, name, change) for name, change in changes.items()}
    outputs = parts.append(mod, **replaced)
    return MaskMod(parts.builder.finish(outputs), tuple(parts.captures), tuple(parts.scalars))


def everything() -> MaskMod:
    """The mask that hides nothing."""
    builder = Builder()
    return MaskMod(builder.finish([builder.const(True, "bool")]))


def _node(parts: Assembly, name: str, change: Change) -> int:
    builder = parts.builder
    if isinstance(change, Always):
        return _number(parts, change.index)
    index = builder.add(name, "int32")
    if isinstance(change, Offset):
        return builder.add("add", "int32", index, _number(parts, change.by))
    parts.captures.append(change.groups.to(torch.int32))
    builder.captures.append(("int32", 1))
    size = _number(parts, change.size)
    group = builder.add("gather", "int32", builder.add("floordiv", "int32", index, size), value=len(parts.captures) - 1)
    return builder.add(
        "add", "int32", builder.add("mul", "int32", group, size), builder.add("mod", "int32", index, size)
    )


def _number(parts: Assembly, value: int) -> int:
    parts.scalars.append(value)
    parts.builder.scalars.append("int32")
    return parts.builder.add("scalar", "int32", value=len(parts.scalars) - 1)
