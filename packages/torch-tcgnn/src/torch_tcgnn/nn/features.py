"""Node features as layers receive them: one tensor, or a (source, target) pair; and the aggregation of both shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..functional import spmm
from ..graph import TCGraph
from .options import Passing

Features = Tensor | tuple[Tensor, Tensor | None]


def pair(x: Features, name: str, flow: str) -> tuple[Tensor, Tensor | None]:
    """Source and target features.

    Raises:
        NotImplementedError: a pair under reversed flow.
        TypeError: features that are not floating point tensors.
        ValueError: a tuple of another length than two.
    """
    if isinstance(x, Tensor):
        source, target = x, x
    else:
        if flow == "target_to_source":
            raise NotImplementedError(
                f"{name}: a pair of features with flow='target_to_source' is not supported here; "
                f"torch_geometric.nn.{name} supports it"
            )
        if not isinstance(x, (tuple, list)) or len(x) != 2:
            raise ValueError(f"{name}: x must be a tensor or a pair (source, target), got {_describe(x)}")
        source, target = x
    for role, t in (("source", source), ("target", target)):
        if t is None and role == "target":
            continue
        if not isinstance(t, Tensor):
            raise TypeError(f"{name}: {role} features must be a Tensor, got {type(t).__name__}")
        if not t.is_floating_point():
            raise TypeError(f"{name}: features must be floating point, got {t.dtype} for the {role} nodes")
    return source, target


def single(x: Features, name: str) -> Tensor:
    """The features of a layer for one node set.

    Raises:
        ValueError: a pair.
        TypeError: not a floating point tensor.
    """
    if not isinstance(x, Tensor):
        raise ValueError(f"{name}: x must be one tensor, got {_describe(x)}; SAGEConv and GraphConv take pairs")
    if not x.is_floating_point():
        raise TypeError(f"{name}: features must be floating point, got {x.dtype}")
    return x


def node_sizes(
    source: Tensor, target: Tensor | None, size: tuple[int | None, int | None] | None, name: str
) -> tuple[int, int]:
    """``(num_sources, num_targets)`` from the features' second-to-last dimension and ``size``.

    Raises:
        ValueError: ``size`` contradicts the features.
    """
    num_sources, num_targets = size if size is not None else (None, None)
    for role, said, t in (("sources", num_sources, source), ("targets", num_targets, target)):
        if said is not None and t is not None and t.shape[-2] != said:
            raise ValueError(f"{name}: size {size} says {said} {role}, but their features have shape {tuple(t.shape)}")
    num_sources = source.shape[-2]
    if num_targets is None:
        num_targets = num_sources if target is None else target.shape[-2]
    return num_sources, num_targets


def flat(x: Tensor, name: str) -> Tensor:
    """Check that features are ``[nodes, channels]``.

    Raises:
        ValueError: another number of dimensions.
    """
    if x.dim() != 2:
        raise ValueError(f"{name}: features must have shape [nodes, channels], got {tuple(x.shape)}")
    return x


def aggregate(g: TCGraph, x: Tensor, how: Passing, weight: Tensor | None = None) -> Tensor:
    """Aggregate ``[..., K, F]`` features over ``g``, under ``weight`` ``[E]`` or the graph's own.

    Returns ``[..., M, F · number of aggregations]``.
    """
    lead = x.shape[:-2]
    rows = x if x.dim() == 2 else x.movedim(-2, 0).flatten(1)
    outs = []
    for reduce in how.reduces:
        out = spmm(g, rows, weight, reduce=reduce, precision=how.precision)
        if x.dim() != 2:
            out = out.view(out.shape[0], *lead, x.shape[-1]).movedim(0, -2)
        outs.append(out)
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1)


def aggregate_then_map(
    g: TCGraph, x: Tensor, how: Passing, lin: Any, weight: Tensor | None = None
) -> Tensor:
    """``lin(aggregate(x))``, in the cheaper order where both give the same: sums and means commute with a matrix."""
    if commutes(lin, how) and lin.weight.shape[0] < lin.weight.shape[1]:
        out = aggregate(g, linear(x, lin.weight), how, weight)
        return out if lin.bias is None else out + lin.bias
    return lin(aggregate(g, x, how, weight))


def commutes(lin: Any, how: Passing) -> bool:
    """Whether aggregating before the matrix of ``lin`` gives what aggregating after it gives."""
    plain = type(lin).__name__ == "Linear" and not (lin._forward_hooks or lin._forward_pre_hooks)
    return plain and how.reduces in (("sum",), ("mean",))


def _describe(x: object) -> str:
    return f"{type(x).__name__} of {len(x)}" if isinstance(x, (tuple, list)) else type(x).__name__
