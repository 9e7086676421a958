"""Additions of a tile to the gradients of captured tensors, as statements.

A captured tensor that is read at places which depend on the query alone, or the key alone, or on neither, gets one
addition a row, a column, or a tile; one read along diagonals gets one a diagonal; others get one an element.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ...differentiate import Derivative
from .diagonals import diagonal, diagonal_sums
from .exact_sums import addition
from .printer import Printed
from .score_gradient import BOX


@dataclass(frozen=True)
class Tile:
    """What additions to gradients of captured tensors need to know of a tile ``[keys, queries]``.

    Attributes:
        language: ``"tl"`` or ``"gl"``.
        keys: how many, where that is known here.
        rows: likewise.
        key: statements and name of the numbers of keys from 0, as the sums of diagonals want them.
        row: of queries.
        setup: statements before.
        lines: layouts of one row, and of one column, in which no thread holds an element twice; Triton finds its own.
    """

    language: str
    keys: int
    rows: int
    key: str
    row: str
    setup: tuple[str, ...] = ()
    lines: tuple[str, str] | None = None


def scatters(derivative: Derivative, printed: Printed, tile: Tile, exact: Collection[int] = ()) -> list[str]:
    """Additions to the gradients of captured tensors; see :func:`~.score_gradient.split_at_gradient`.

    Args:
        derivative: of the score modification.
        printed: as statements.
        tile: what they are in.
        exact: captured tensors whose sums are exact (see :mod:`.exact_sums`).
    """
    program, outputs, language = derivative.program, printed.outputs, tile.language
    lines: list[str] = []
    depends = [program.dependencies[o] for o in program.outputs]
    for number, scatter in enumerate(derivative.scatters):
        indices = [outputs[i] for i in scatter.indices]
        on = frozenset().union(*(depends[i] for i in scatter.indices)) - {"b", "h"}
        value = f"t{number}"
        lines.append(f"{value} = slope{number} * rest")
        slanted = diagonal(derivative, scatter, printed.values)
        if slanted is not None:
            sizes = tile.keys, tile.rows
            lines += tile.setup
            summed = scatter.capture in exact
            lines += diagonal_sums(value, slanted, scatter.capture, BOX, *sizes, language, tile.key, tile.row, summed)
            continue
        inside = []
        if not on:
            lines.append(f"{value} = {language}.sum({value})")
        elif on == {"q"}:
            lines.append(f"{value} = {language}.sum({value}, 0)[None, :]")
            inside.append("(q_rows[None, :] < q_len)")
        elif on == {"kv"}:
            lines.append(f"{value} = {language}.sum({value}, 1)[:, None]")
            inside.append("(kv_idx < kv_len)")
        else:
            inside.append("(p != 0)")
        offsets = []
        for dim, index in enumerate(indices):
            size = f"c{scatter.capture}_n{dim}"
            lines.append(f"{value}_{dim} = tl.where({index} < 0, {index} + {size}, {index})")
            inside.append(f"({value}_{dim} >= 0) & ({value}_{dim} < {size})")
            offsets.append(f"({value}_{dim}) * g{scatter.capture}_s{dim}")
        lines += [f"{value}_at = {' + '.join(offsets)}"] if offsets else []
        lines += [f"{value}_in = {' & '.join(inside)}"] if inside else []
        if tile.lines is not None and on in ({"q"}, {"kv"}):
            layout = tile.lines[on == {"kv"}]
            lines += [f"{name} = gl.convert_layout({name}, {layout})" for name in (value, f"{value}_at", f"{value}_in")]
        at, within = f"{value}_at" if offsets else "", f"{value}_in" if inside else ""
        lines.append(addition(scatter.capture, at, value, within, language, scatter.capture in exact))
    return lines
