"""Indices of 64 bits into captured tensors that 32 bits do not reach: an index times a stride may pass 2³¹."""

from __future__ import annotations

import functools
from typing import TypeVar

from torch import Tensor

from ...filled import Mod
from ...program import Builder, Program

REACH = 2**31
M = TypeVar("M", bound=Mod | None)


def reaching(mod: M) -> M:
    """The mod; its program reads large tensors by int64 indices."""
    if mod is None or not mod.captures:
        return mod
    wide = tuple(is_large(c) for c in mod.captures)
    return type(mod)(with_wide_indices(mod.program, wide), mod.captures, mod.scalars) if any(wide) else mod


def is_large(tensor: Tensor) -> bool:
    """Whether an offset into the tensor, or into a contiguous gradient of it, needs more than 32 bits."""
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return max(span, tensor.numel()) >= REACH


@functools.lru_cache(maxsize=256)
def with_wide_indices(program: Program, wide: tuple[bool, ...]) -> Program:
    """The program with int64 indices into the captured tensors that are ``wide``."""
    builder = Builder(program.captures, program.scalars)
    places: list[int] = []
    for node in program.nodes:
        args = [places[a] for a in node.args]
        if node.op == "gather" and wide[int(node.value)]:  # type: ignore[arg-type]
            args = [builder.cast(a, "int64", node.line) for a in args]
        places.append(builder.add(node.op, node.dtype, *args, value=node.value, line=node.line))
    return builder.finish([places[o] for o in program.outputs])
