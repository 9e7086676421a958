"""Gradients of tables read at ``q_idx - kv_idx``: a tile is summed along its diagonals before anything is added.

A tile of keys by queries is turned, row ``k`` by ``k`` places, so that a diagonal becomes a column: two or three sums
of columns, as the turn wraps. That is an addition to memory for each diagonal instead of one for each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...differentiate import Derivative, Scatter
from .exact_sums import addition
from .slanted import Box, Slope, slope


@dataclass(frozen=True)
class Diagonal:
    """Where a scatter adds.

    Attributes:
        dim: the dimension whose index is ``base ± (q - kv)``.
        indices: of every dimension.
    """

    dim: int
    indices: tuple[Slope, ...]


def diagonal(derivative: Derivative, scatter: Scatter, values: Sequence[str]) -> Diagonal | None:
    """Where a scatter adds, if that is one place all along a diagonal; ``values``: names of the program's values."""
    program = derivative.program
    found = [slope(program, program.outputs[i], values) for i in scatter.indices]
    indices = tuple(f for f in found if f is not None)
    if len(indices) < len(found):
        return None
    moving = [n for n, i in enumerate(indices) if i.q_step or i.kv_step]
    if len(moving) != 1 or (indices[moving[0]].q_step, indices[moving[0]].kv_step) not in ((1, -1), (-1, 1)):
        return None
    return Diagonal(moving[0], indices)


def diagonal_sums(
    value: str,
    of: Diagonal,
    capture: int,
    box: Box,
    keys: int,
    rows: int,
    language: str,
    key: str,
    row: str,
    exact: bool = False,
) -> list[str]:
    """Statements that add ``value``, a tile of ``keys`` by ``rows`` queries, to the gradient of a captured tensor.

    Args:
        value: the tile.
        of: where.
        capture: number of the captured tensor.
        box: the tile's place.
        keys: of the tile.
        rows: of the tile: a power of two.
        language: ``"tl"`` or ``"gl"``.
        key: the numbers of keys from 0, ``[keys, 1]``.
        row: the numbers of queries from 0, ``[rows]``.
        exact: whether the sums are exact (see :mod:`.exact_sums`).
    """
    lines = [
        f"{value}_at = {key} + {row}[None, :]",
        f"{value} = {language}.gather({value}, {value}_at & {rows - 1}, 1)",
        f"{value}_wraps = {value}_at // {rows}",
    ]
    index = of.indices[of.dim]
    places = []
    for dim, other in enumerate(of.indices):
        if dim != of.dim:
            place = f"tl.where({other.base} < 0, {other.base} + c{capture}_n{dim}, {other.base})"
            places.append(f"({place}) * g{capture}_s{dim}")
    first = f"{index.base} + {index.q_step} * ({box.q[0]}) + {index.kv_step} * ({box.kv[0]})"
    size = f"c{capture}_n{of.dim}"
    for wraps in range((keys + rows - 2) // rows + 1):
        part = f"{value}_{wraps}"
        sign = "+" if index.q_step > 0 else "-"
        lines += [
            f"{part} = {language}.sum(tl.where({value}_wraps == {wraps}, {value}, 0.0), 0)",
            f"{part}_at = {first} {sign} ({row} - {wraps * rows})",
            f"{part}_at = tl.where({part}_at < 0, {part}_at + {size}, {part}_at)",
            addition(
                capture,
                " + ".join([*places, f"{part}_at * g{capture}_s{of.dim}"]),
                part,
                f"({part}_at >= 0) & ({part}_at < {size}) & ({part} != 0)",
                language,
                exact,
            ),
        ]
    return lines
