"""The graph a layer works on, for whatever it was handed: from the shared cache, or traced by a compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from .. import cache
from ..graph import Flow, TCGraph
from ..graph_arguments import check_tensor
from ..interop import as_graph
from ..settle import check_not_captured, settle

T = TypeVar("T")


def remembered(
    adj: Any, extra: Tensor | None, size: tuple[int, int], flow: Flow, options: tuple, build: Callable[[], T]
) -> T:
    """``build()``, at most once for the same ``adj``, ``extra``, ``size``, ``flow`` and ``options``.

    What is derived from a ``TCGraph`` alone stays with that graph. ``torch.compile`` sees what is already there of an
    unweighted graph, and otherwise traces ``build`` into the program.
    """
    refuse_tracing()
    if torch.compiler.is_compiling():
        reads = isinstance(adj, TCGraph) and extra is None and adj.weight is None
        found = adj._derived.get(options) if reads else None
        return build() if found is None else found[1]
    if not isinstance(adj, TCGraph) or extra is not None or not _constant(adj.weight):
        return cache.get((adj,) if extra is None else (adj, extra), (*options, size, flow), build)
    version = 0 if adj.weight is None else adj.weight._version
    found = adj._derived.get(options)
    if found is None or found[0] != version:
        check_not_captured(adj.device)
        with torch.inference_mode(False), torch.no_grad():
            found = (version, build())
        settle(adj.device)
        adj._derived[options] = found
    return found[1]


def plain_graph(adj: Any, size: tuple[int, int], flow: Flow) -> TCGraph:
    """The graph of ``adj``, its own values as weights, with ``(num_sources, num_targets)`` nodes."""
    if isinstance(adj, TCGraph):
        refuse_tracing()
        return as_graph(adj, size)
    return remembered(adj, None, size, flow, ("plain",), lambda: as_graph(adj, size, flow=flow))


def refuse_tracing() -> None:
    """Raise under ``torch.jit.trace``, which would record the translated graph as a constant.

    Raises:
        RuntimeError: tracing.
    """
    if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        raise RuntimeError("torch.jit.trace would keep this graph as a constant: use torch.export or torch.compile")


def edge_weights(weight: Tensor | None, num_edges: int, name: str, device: torch.device) -> Tensor | None:
    """A caller's ``edge_weight`` as ``[E]``, or ``None``.

    Raises:
        TypeError: weights are no dense floating point tensor.
        ValueError: another number of edges, or another device than the graph's.
    """
    if weight is None:
        return None
    check_tensor(f"{name}: edge_weight", weight)
    if not weight.is_floating_point():
        raise TypeError(f"{name}: edge_weight must be floating point, got {weight.dtype}")
    if weight.dim() == 0 or weight.shape[0] != num_edges or weight.numel() != num_edges:
        raise ValueError(f"{name}: edge_weight must have {num_edges} values, one an edge, got {tuple(weight.shape)}")
    if weight.device != device:
        where = f"{weight.device}, but the graph is on {device}"
        raise ValueError(f"{name}: edge_weight is on {where}: move one with .to()")
    return weight.reshape(-1)


def _constant(weight: Tensor | None) -> bool:
    """Whether edits of ``weight`` are counted and nothing differentiates through it."""
    return weight is None or not (weight.is_inference() or weight.requires_grad)
