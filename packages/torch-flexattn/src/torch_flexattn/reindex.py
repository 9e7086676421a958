"""A mask seen from other indices: shifted, of chosen batches and heads, of chosen rows of blocks.

The program is kept, with other nodes in the places of its inputs. Offsets are numbers that are filled in at run time,
so a mask shifted by another offset is the same program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .assembly import Assembly
from .errors import KindError
from .mods import MaskMod
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
    (output,) = parts.append(mod, **replaced)
    return MaskMod(*parts.finish(output))


def shifted(mod: MaskMod, q: int, kv: int) -> MaskMod:
    """A mask whose query ``i`` and key ``j`` are ``i + q`` and ``j + kv`` of the old.

    Raises:
        KindError: no integers.
    """
    for name, by in (("q", q), ("kv", kv)):
        if isinstance(by, bool) or not isinstance(by, int):
            raise KindError(f"{name} must be an integer, got {by!r}")
    return reindexed(mod, {"q": Offset(q), "kv": Offset(kv)})


def everything() -> MaskMod:
    """The mask that hides nothing."""
    builder = Builder()
    return MaskMod(builder.finish([builder.const(True, "bool")]))


def _node(parts: Assembly, name: str, change: Change) -> int:
    builder = parts.builder
    if isinstance(change, Always):
        return parts.number(change.index)
    index = builder.add(name, "int32")
    if isinstance(change, Offset):
        return builder.add("add", "int32", index, parts.number(change.by))
    size = parts.number(change.size)
    group = parts.gather(change.groups.to(torch.int32), builder.add("floordiv", "int32", index, size))
    return builder.add(
        "add", "int32", builder.add("mul", "int32", group, size), builder.add("mod", "int32", index, size)
    )
