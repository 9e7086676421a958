"""What a kernel is told of mods: captured tensors with sizes and strides, and numbers, in the order of the programs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ...differentiate import Derivative
from ...filled import Mod
from ...program import Program


def names(programs: Sequence[Program], derivative: Derivative | None = None, exact: Collection[int] = ()) -> list[str]:
    """``c0, c0_n0, …, c0_s0, …`` for each captured tensor, ``s0`` for each number, ``g0, g0_s0, …`` for a gradient.

    Of one that is ``exact``, ``g0_first, g0_stop`` as well (see :mod:`.exact_sums`).
    """
    found, number, scalar = [], 0, 0
    for program in programs:
        for _, dims in program.captures:
            found += [f"c{number}", *(f"c{number}_{kind}{d}" for kind in "ns" for d in range(dims))]
            number += 1
        found += [f"s{scalar + n}" for n in range(len(program.scalars))]
        scalar += len(program.scalars)
    if derivative is not None:
        for capture in sorted({s.capture for s in derivative.scatters}):
            dims = derivative.program.captures[capture][1]
            found += [f"g{capture}", *(f"g{capture}_s{d}" for d in range(dims))]
            found += [f"g{capture}_first", f"g{capture}_stop"] * (capture in exact)
    return found


def parameters(programs: Sequence[Program], derivative: Derivative | None = None, exact: Collection[int] = ()) -> str:
    """:func:`names` as a line of a kernel's signature."""
    found = names(programs, derivative, exact)
    return f"    {', '.join(found)},\n" if found else ""


def arguments(mods: Sequence[Mod | None]) -> list[Any]:
    """What fills :func:`names`, but for gradients."""
    values: list[Any] = []
    for mod in mods:
        if mod is not None:
            for capture in mod.captures:
                values += [capture, *capture.shape, *capture.stride()]
            values += mod.scalars
    return values
