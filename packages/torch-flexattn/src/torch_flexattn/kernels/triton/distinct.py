"""Which additions to the gradient of a captured tensor meet no other, so that their order is no matter.

``bias[b, h, q_idx, kv_idx]`` is read at another place for every query and key: in a launch whose programs are of one
batch entry and head, or of those that the other indices tell apart, each place gets one addition.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...differentiate import Derivative, Scatter
from .slanted import slope


@dataclass(frozen=True)
class Distinct:
    """A scatter whose places differ within a batch entry and head.

    Attributes:
        query: the dimension whose index moves with the query alone, and the step.
        key: likewise with the key.
        apart: those of ``b`` and ``h`` that are an index of their own: their places differ, too.
    """

    query: tuple[int, int]
    key: tuple[int, int]
    apart: frozenset[str]

    def holds(self, sizes: tuple[int, ...], queries: int, keys: int) -> bool:
        """Whether it is so of a tensor of these sizes: no index runs further than its dimension, and so wraps."""
        spans = ((self.query, queries), (self.key, keys))
        return all(abs(step) * (count - 1) < sizes[dim] for (dim, step), count in spans)


def distinct(derivative: Derivative, capture: int) -> Distinct | None:
    """How the places of a captured tensor differ, where it is read once and they do."""
    read = [s for s in derivative.scatters if s.capture == capture]
    return _distinct(derivative, read[0]) if len(read) == 1 else None


def _distinct(derivative: Derivative, scatter: Scatter) -> Distinct | None:
    program = derivative.program
    values = [str(n) for n in range(len(program.nodes))]
    numbers = [program.outputs[i] for i in scatter.indices]
    found = [slope(program, n, values) for n in numbers]
    indices = [s for s in found if s is not None]
    if len(indices) < len(found):
        return None
    queries = [(d, s.q_step) for d, s in enumerate(indices) if s.q_step and not s.kv_step]
    keys = [(d, s.kv_step) for d, s in enumerate(indices) if s.kv_step and not s.q_step]
    if len(queries) != 1 or len(keys) != 1 or any(s.q_step and s.kv_step for s in indices):
        return None
    return Distinct(queries[0], keys[0], frozenset(_source(derivative, n) for n in numbers) & {"b", "h"})


def _source(derivative: Derivative, number: int) -> str:
    """The input that a node is, seen through casts; else its operation."""
    node = derivative.program.nodes[number]
    return _source(derivative, node.args[0]) if node.op == "cast" else node.op
