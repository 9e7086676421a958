"""Masks that come as tensors, with those of functions, as one mask and one score modification.

Under ``torch.compile`` no function can be recorded. So the programs are found by what is asked for, outside the graph,
and the graph fills in its tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from ..filled import Mod
from ..mods import MaskMod, ScoreMod
from ..program import NAMES, Builder, Program, parse
from .outside_graph import outside_graph

Table = Literal["pairs", "heads", "padding"]
"""``[L, S]``, ``[B · H, L, S]`` or ``[B, S]``."""


def as_mods(
    tables: dict[Table, Tensor],
    heads: int,
    causal: bool,
    mask: MaskMod | None,
    score: ScoreMod | None,
    keys_before_others: int | None,
) -> tuple[MaskMod | None, ScoreMod | None]:
    """The mask and the score modification of a call.

    Args:
        tables: bool, True where hidden, or floating point, added to scores; −inf hides.
        heads: of the queries.
        causal: whether query ``i`` sees keys ``j ≤ i`` only.
        mask: what else hides.
        score: what else changes scores, before the tables.
        keys_before_others: from this key on all are visible and keep their scores; ``None``: there are no such keys.
    """
    hides: list[Mod] = [] if mask is None else [mask]
    adds: list[Mod] = [] if score is None else [score]
    if causal:
        hides.append(MaskMod(program_of("causal", "bool", "mask")))
    for name, table in tables.items():
        dtype = NAMES[table.dtype]
        scalars = (heads,) if name == "heads" else ()
        if not (table.is_floating_point() and table.requires_grad):  # a learnt one changes at every step, hides nothing
            hides.append(MaskMod(program_of(name, dtype, "mask"), (table,), scalars))
        if table.is_floating_point():
            adds.append(ScoreMod(program_of(name, dtype, "score"), (table,), scalars))
    found = (_joined(hides, "mask", keys_before_others), _joined(adds, "score", keys_before_others))
    return None if found[0] is None else MaskMod(*found[0]), None if found[1] is None else ScoreMod(*found[1])


def all_of(*masks: MaskMod | None) -> MaskMod | None:
    """What is visible in all masks that are not ``None``; ``None`` if all are. Works inside ``torch.compile``."""
    found = _joined([mask for mask in masks if mask is not None], "mask", None)
    return None if found is None else MaskMod(*found)


def _joined(
    mods: Sequence[Mod], kind: Literal["mask", "score"], keys: int | None
) -> tuple[Program, tuple[Tensor, ...], tuple[int | float, ...]] | None:
    """All of ``mods`` as one."""
    if not mods:
        return None
    captures = tuple(capture for mod in mods for capture in mod.captures)
    scalars = tuple(scalar for mod in mods for scalar in mod.scalars)
    if keys is not None:
        scalars = (*scalars, keys)
    elif len(mods) == 1:
        return mods[0].program, captures, scalars
    return joined(tuple(mod.program.text for mod in mods), kind, keys is not None), captures, scalars


@outside_graph
def program_of(table: str, dtype: str, kind: Literal["mask", "score"]) -> Program:
    """What a table of a type hides or adds."""
    return _program_of(table, dtype, kind)


@functools.lru_cache(maxsize=256)
def _program_of(table: str, dtype: str, kind: Literal["mask", "score"]) -> Program:
    build = Builder()
    b, h, query, key = (build.add(name, "int32") for name in ("b", "h", "q", "kv"))
    if table == "causal":
        return _written(build, build.add("ge", "bool", query, key))
    index: tuple[int, ...] = (query, key)
    if table == "padding":
        index = b, key
    elif table == "heads":
        build.scalars.append("int32")
        first = build.add("mul", "int32", b, build.add("scalar", "int32", value=0))
        index = build.add("add", "int32", first, h), query, key
    build.captures.append((dtype, len(index)))
    read = build.add("gather", dtype, *index, value=0)
    if kind == "score":
        wide = "float64" if dtype == "float64" else "float32"
        score = build.cast(build.add("score", "float32"), wide)
        return _written(build, build.add("add", wide, score, build.cast(read, wide)))
    if dtype == "bool":
        return _written(build, build.add("not", "bool", read))
    return _written(build, build.add("ne", "bool", read, build.const(float("-inf"), dtype)))


def _written(build: Builder, result: int) -> Program:
    """The program, with its text, which Dynamo reads and cannot write."""
    program = build.finish([result])
    program.text  # noqa: B018
    return program


@outside_graph
def joined(texts: tuple[str, ...], kind: Literal["mask", "score"], others: bool) -> Program:
    """Masks that all apply, or score modifications one after the other, as one program.

    Their captures and numbers follow each other. ``others``: a last number says from which key on they do not apply.
    """
    return _joined_programs(texts, kind, others)


@functools.lru_cache(maxsize=256)
def _joined_programs(texts: tuple[str, ...], kind: Literal["mask", "score"], others: bool) -> Program:
    programs = [parse(text) for text in texts]
    build = Builder(
        [capture for program in programs for capture in program.captures],
        [scalar for program in programs for scalar in program.scalars] + (["int32"] if others else []),
    )
    replaced: dict[str, int] = {}
    beyond = -1
    if others:
        key = build.add("kv", "int32")
        first = build.add("scalar", "int32", value=len(build.scalars) - 1)
        beyond = build.add("ge", "bool", key, first)
        last = build.add("sub", "int32", first, build.const(1, "int32"))
        replaced["kv"] = build.add("min", "int32", key, last)
    result = given = -1
    if kind == "score":
        result = given = build.add("score", "float32")
    captures = scalars = 0
    for number, program in enumerate(programs):
        if kind == "score":
            replaced["score"] = result
        (own,) = build.inline(
            program,
            range(captures, captures + len(program.captures)),
            range(scalars, scalars + len(program.scalars)),
            replaced,
        )
        captures, scalars = captures + len(program.captures), scalars + len(program.scalars)
        result = own if kind == "score" or number == 0 else build.add("and", "bool", result, own)
    if others and kind == "mask":
        result = build.add("or", "bool", beyond, result)
    elif others:
        dtype = build.nodes[result].dtype
        result = build.add("where", dtype, beyond, build.cast(given, dtype), result)
    return _written(build, result)
