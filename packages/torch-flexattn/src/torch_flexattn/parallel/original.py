"""Mods of the whole sequence, as shards see them: local numbers of queries and keys become original ones."""

from __future__ import annotations

import functools
from typing import TypeVar

import torch
from torch import Tensor

from ..filled import Mod
from ..program import Builder, Program
from .plan import ShardPlan

M = TypeVar("M", bound=Mod)
Places = int | Tensor
"""Original positions: of neighbours, the first; else a table, int32 ``[local_length]``."""


def places_of(plan: ShardPlan, rank: int, device: torch.device) -> Places:
    """Where the tokens of a rank are in the whole sequence."""
    first = plan.first_of_stretch(rank)
    return plan.positions(rank, device) if first is None else first


def from_original(mod: M, queries: Places, keys: Places) -> M:
    """The mod of local indices.

    Its first captured tensors and numbers are those of ``mod``; tables of positions and first positions follow.

    Args:
        mod: of original indices.
        queries: where local queries are in the whole sequence.
        keys: where local keys are.
    """
    given = [(name, at) for name, at in (("q", queries), ("kv", keys)) if name in mod.dependencies]
    moved = [(name, at) for name, at in given if isinstance(at, Tensor) or at]
    program = _local(mod.program, tuple((name, isinstance(at, Tensor)) for name, at in moved))
    tables = [at for _, at in moved if isinstance(at, Tensor)]
    firsts = [at for _, at in moved if not isinstance(at, Tensor)]
    return type(mod)(program, (*mod.captures, *tables), (*mod.scalars, *firsts))


@functools.lru_cache(maxsize=1024)
def _local(program: Program, moved: tuple[tuple[str, bool], ...]) -> Program:
    """The program with positions in place of some indices: read in a table, or counted from a first one."""
    builder = Builder(program.captures, program.scalars)
    replaced = {}
    for name, in_table in moved:
        index = builder.add(name, "int32")
        if in_table:
            builder.captures.append(("int32", 1))
            replaced[name] = builder.add("gather", "int32", index, value=len(builder.captures) - 1)
        else:
            builder.scalars.append("int32")
            first = builder.add("scalar", "int32", value=len(builder.scalars) - 1)
            replaced[name] = builder.add("add", "int32", index, first)
    own = range(len(program.captures)), range(len(program.scalars))
    return builder.finish(builder.inline(program, *own, replaced))
