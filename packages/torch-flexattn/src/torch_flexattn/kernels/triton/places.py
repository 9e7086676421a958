"""What a kernel is told of mods: captured tensors with sizes and strides, and numbers, in the order of the programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...mods import Mod
from ...program import Program


def parameters(programs: Sequence[Program]) -> str:
    """Lines of a kernel's signature: ``c0, c0_n0, …, c0_s0, …`` for each captured tensor, ``s0`` for each number."""
    lines, number, scalar = [], 0, 0
    for program in programs:
        for _, dims in program.captures:
            names = [f"c{number}", *(f"c{number}_{kind}{d}" for kind in "ns" for d in range(dims))]
            lines.append(", ".join(names))
            number += 1
        if program.scalars:
            lines.append(", ".join(f"s{scalar + n}" for n in range(len(program.scalars))))
            scalar += len(program.scalars)
    return "".join(f"    {line},\n" for line in lines)


def arguments(mods: Sequence[Mod | None]) -> list[Any]:
    """What fills :func:`parameters`."""
    values: list[Any] = []
    for mod in mods:
        if mod is not None:
            for capture in mod.captures:
                values += [capture.detach(), *capture.shape, *capture.stride()]
            values += mod.scalars
    return values
