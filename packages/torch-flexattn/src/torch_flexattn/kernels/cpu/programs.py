"""Programs of mods on tiles: what depends on ``q − kv`` alone is computed once a diagonal, not once a score.

Windows, causal masks, ALiBi, T5 buckets and tables of relative positions are functions of the distance, in part or
whole. A program is cut in two: the part that needs distances alone runs on one vector of rows + keys − 1 of them, and
its results are spread over the tile; the rest reads them like captured tensors. A derivative is cut once more, before
the first node that needs the gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...differentiate import Scatter, differentiate
from ...evaluate import evaluator
from ...operations import COMPARISONS
from ...program import LEAVES, Builder, Node, Program
from ...widen import widened
from .read import read

Inputs = dict[str, Tensor]
Pieces = Sequence[tuple[int, int]]


def split(program: Program, first: Sequence[bool], *wanted: int) -> tuple[Program | None, Program, list[int]]:
    """Cut a program in two: nodes that are ``first``, and the rest.

    Args:
        program: what to cut.
        first: which nodes; they need no other but leaves.
        wanted: nodes that the first part yields, needed or not.

    Returns:
        The first part (``None``: it is empty); the second, which reads the outputs of the first as captured tensors
        without dimensions, after its own; and the numbers of the nodes that the first part yields.
    """
    nodes = program.nodes
    needed = {a for n, node in enumerate(nodes) if not first[n] for a in node.args} | set(program.outputs)
    kept = [first[n] and n in needed and nodes[n].op not in LEAVES[:-1] for n in range(len(nodes))]
    edge = [n for n in range(len(nodes)) if kept[n] or n in wanted]
    if not edge:
        return None, program, edge
    builder = Builder(program.captures, program.scalars)
    builder.nodes = list(nodes)
    before = builder.finish(edge)
    for number, n in enumerate(edge):
        builder.nodes[n] = Node("gather", nodes[n].dtype, (), len(program.captures) + number)
    builder.captures += [(nodes[n].dtype, 0) for n in edge]
    return before, builder.finish(program.outputs), edge


def on_diagonals(program: Program) -> list[bool]:
    """Which nodes need the distance of query and key, and neither of the two."""
    distances = ("sub", *COMPARISONS)
    alone: list[bool] = []
    found: list[bool] = []
    for node, needs in zip(program.nodes, program.dependencies):
        bases = [_uncast(program, a) for a in node.args]
        is_base = node.op in distances and {b.op for b in bases} == {"q", "kv"}
        free = not needs & {"q", "kv", "score", "grad"}
        alone.append(is_base or (free if not node.args else all(alone[a] for a in node.args)))
        found.append(alone[-1] and not free)
    return found


def _uncast(program: Program, number: int) -> Node:
    node = program.nodes[number]
    return _uncast(program, node.args[0]) if node.op == "cast" and node.dtype.startswith("int") else node


class TileProgram:
    """A program of a mod, ready to run on tiles."""

    def __init__(self, program: Program) -> None:
        diagonal, rest, _ = split(program, on_diagonals(program))
        self._diagonal = None if diagonal is None else evaluator(diagonal, read=read)
        self._rest = evaluator(rest, read=read)

    def __call__(
        self, inputs: Inputs, captures: Sequence[Tensor], scalars: Sequence[Any], pieces: Pieces
    ) -> tuple[Tensor, Tensor | None]:
        """The result, and where a captured tensor was read out of range.

        Args:
            inputs: of the program; ``q`` is ``[rows, 1]``, of consecutive queries, and ``kv`` ``[1, keys]``.
            captures: the captured tensors.
            scalars: the numbers that are filled in.
            pieces: stretches of consecutive keys that ``kv`` is made of.
        """
        spread, outside = _spread(self._diagonal, inputs, captures, scalars, pieces)
        (result,), other = self._rest(inputs, (*captures, *spread), scalars)
        return result, _either(outside, other)


class TileDerivative:
    """The derivative of a score modification, ready to run on tiles: first the modified score, then the gradients."""

    def __init__(self, program: Program, needed: Sequence[bool], dtype: torch.dtype) -> None:
        derivative = differentiate(program, needed)
        self.scatters: tuple[Scatter, ...] = derivative.scatters
        whole = widened(derivative.program) if dtype == torch.float64 else derivative.program
        diagonal, rest, _ = split(whole, on_diagonals(whole))
        self._diagonal = None if diagonal is None else evaluator(diagonal, read=read)
        modified = rest.outputs[0]
        before, after, edge = split(rest, ["grad" not in needs for needs in rest.dependencies], modified)
        self._place = edge.index(modified)
        self._before, self._after = evaluator(before, read=read), evaluator(after, read=read)

    def __call__(
        self, inputs: Inputs, captures: Sequence[Tensor], scalars: Sequence[Any], pieces: Pieces
    ) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
        """The modified score, and what gives, for its gradient, the other outputs of the derivative."""
        spread, _ = _spread(self._diagonal, inputs, captures, scalars, pieces)
        known, _ = self._before(inputs, (*captures, *spread), scalars)

        def finish(grad: Tensor) -> list[Tensor]:
            results, _ = self._after({**inputs, "grad": grad}, (*captures, *spread, *known), scalars)
            return results

        return known[self._place], finish


tile_program = functools.lru_cache(maxsize=1024)(TileProgram)
tile_derivative = functools.lru_cache(maxsize=1024)(TileDerivative)


def _spread(
    diagonal: Callable[..., Any] | None,
    inputs: Inputs,
    captures: Sequence[Tensor],
    scalars: Sequence[Any],
    pieces: Pieces,
) -> tuple[list[Tensor], Tensor | None]:
    """Results of the part on diagonals, ``[…, rows, keys]``, and where it read out of range."""
    if diagonal is None:
        return [], None
    q, rows = inputs["q"], inputs["q"].shape[0]
    keys = [stop - start for start, stop in pieces]
    # Descending from the last query and first key, so that a row of the tile is a stretch of the vector.
    distances = torch.cat([q[-1] - start - torch.arange(rows + n - 1) for (start, _), n in zip(pieces, keys)])
    given = {"q": distances.to(torch.int32).unsqueeze(0), "kv": torch.zeros((1, 1), dtype=torch.int32)}
    results, outside = diagonal({**inputs, **given}, captures, scalars)

    def tile(x: Tensor) -> Tensor:
        parts = [p.unfold(-1, n, 1) for p, n in zip(x.squeeze(-2).split([rows + n - 1 for n in keys], -1), keys)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, -1)).flip(-2)

    if outside is not None:  # reads whose index is the head's alone are wrong, or not, on all diagonals
        whole = torch.broadcast_shapes(outside.shape, (1, distances.shape[0]))
        outside = tile(outside.expand(whole)) if bool(outside.any()) else None
    return [tile(r) for r in results], outside


def _either(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a if b is None else b if a is None else a | b
