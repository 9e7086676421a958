"""The graph a layer works on, for whatever it was handed: from the shared cache, or traced where a compiler looks on."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor

from .. import cache
from ..graph import Flow, TCGraph
from ..interop import as_graph, read_edges

T = TypeVar("T")


def remembered(adj: Any, extra: Tensor | None, options: Hashable, build: Callable[[], T]) -> T:
    """``build()``, at most once for the same ``adj``, ``extra`` and ``options``.

    What is derived from a ``TCGraph`` alone stays with that graph. ``torch.compile`` sees what is already there, and
    otherwise traces ``build`` into the program.
    """
    if isinstance(adj, TCGraph) and extra is None and not _differentiable(adj.weight):
        key = (options, None if adj.weight is None else adj.weight._version)
        found = adj._derived.get(key)
        if found is not None:
            return found
        if torch.compiler.is_compiling():
            return build()
        with torch.inference_mode(False), torch.no_grad():
            return adj._derived.setdefault(key, build())
    if torch.compiler.is_compiling():
        return build()
    return cache.get((adj,) if extra is None else (adj, extra), options, build)


def plain_graph(adj: Any, size: tuple[int, int], flow: Flow, weight: Tensor | None = None) -> TCGraph:
    """The graph of ``adj`` with ``(num_sources, num_targets)`` nodes, under ``weight`` or the values ``adj`` carries."""
    if isinstance(adj, TCGraph):
        return as_graph(adj, size, weight)
    validate = not torch.compiler.is_compiling()
    if size[0] == size[1] and flow == "target_to_source":
        size = size[::-1]
    graph = remembered(
        adj, None, ("plain", size, flow), lambda: as_graph(adj, size, flow=flow, validate=validate)
    )
    return graph if weight is None else graph.with_weight(weight)


def edge_weights(adj: Any, weight: Tensor | None, num_edges: int, name: str) -> Tensor | None:
    """``weight``, else the values ``adj`` carries, as ``[E]``.

    Raises:
        TypeError: weights are not floating point.
        ValueError: another number of edges.
    """
    if weight is None:
        return None
    if not weight.is_floating_point():
        raise TypeError(f"{name}: edge_weight must be floating point, got {weight.dtype}")
    if weight.shape[0] != num_edges or weight.numel() != num_edges:
        raise ValueError(f"{name}: edge_weight must have {num_edges} values, one an edge, got {tuple(weight.shape)}")
    return weight.reshape(-1)


def _differentiable(weight: Tensor | None) -> bool:
    return weight is not None and weight.requires_grad and torch.is_grad_enabled()
