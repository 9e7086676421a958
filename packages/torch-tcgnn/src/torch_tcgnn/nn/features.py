"""Node features as layers receive them: one tensor, or a (source, target) pair; and the aggregation of both shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.nn.parameter import UninitializedParameter

from ..functional import spmm
from ..functional.arguments import HALVES
from ..graph import TCGraph
from ..graph_arguments import is_count
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
        _check_dense(t, name, f" for the {role} nodes")
    return source, target


def single(x: Features, name: str) -> Tensor:
    """The features of a layer for one node set.

    Raises:
        ValueError: a pair.
        TypeError: not a floating point tensor.
    """
    if not isinstance(x, Tensor):
        raise ValueError(f"{name}: x must be one tensor, got {_describe(x)}; SAGEConv and GraphConv take pairs")
    _check_dense(x, name, "")
    return x


def _check_dense(x: Tensor, name: str, whose: str) -> None:
    if x.layout is not torch.strided:
        raise TypeError(f"{name}: features must be dense, got layout {x.layout}{whose}: use .to_dense()")
    if not x.is_floating_point():
        raise TypeError(f"{name}: features must be floating point, got {x.dtype}{whose}")
    if x.dim() < 2:
        raise ValueError(f"{name}: features must have shape [nodes, channels], got {tuple(x.shape)}{whose}")


def check_fits(lin: Any, x: Tensor, name: str, what: str = "x", *, times: int = 1) -> None:
    """Raise where a linear map cannot take ``x``, ``times`` over; other modules are left to their own words.

    Raises:
        ValueError: another number of features, or another device.
        TypeError: another type, outside autocast.
    """
    weight = lin._parameters.get("weight") if type(lin).__name__ == "Linear" else None
    if weight is None or isinstance(weight, UninitializedParameter):
        return
    if x.shape[-1] * times != weight.shape[-1]:
        wanted = weight.shape[-1] // times
        raise ValueError(f"{name}: {what} must have {wanted} features, got shape {tuple(x.shape)}")
    if x.device != weight.device:
        raise ValueError(f"{name}: {what} is on {x.device}, but the layer is on {weight.device}: move one with .to()")
    if x.dtype != weight.dtype and (x.is_meta or not torch.is_autocast_enabled(x.device.type)):
        raise TypeError(f"{name}: {what} is {x.dtype}, but the layer is {weight.dtype}: convert one with .to()")


def node_sizes(
    source: Tensor, target: Tensor | None, size: tuple[int | None, int | None] | None, name: str
) -> tuple[int, int]:
    """``(num_sources, num_targets)`` from the features' second-to-last dimension and ``size``.

    Raises:
        TypeError: ``size`` is no pair of counts.
        ValueError: ``size`` contradicts the features.
    """
    num_sources, num_targets = (None, None) if size is None else _pair_of_counts(size, name)
    for role, said, t in (("sources", num_sources, source), ("targets", num_targets, target)):
        if said is not None and t is not None and t.shape[-2] != said:
            raise ValueError(f"{name}: size {size} says {said} {role}, but their features have shape {tuple(t.shape)}")
    num_sources = source.shape[-2]
    if num_targets is None:
        num_targets = num_sources if target is None else target.shape[-2]
    return num_sources, num_targets


def _pair_of_counts(size: Any, name: str) -> tuple[int | None, int | None]:
    if not isinstance(size, (tuple, list)) or len(size) != 2 or not all(n is None or is_count(n) for n in size):
        raise TypeError(f"{name}: size must be (sources, targets), counts or None, got {size!r}")
    if any(n is not None and n < 0 for n in size):
        raise ValueError(f"{name}: size must hold counts of at least 0, got {size}")
    return size[0], size[1]


def flat(x: Tensor, name: str) -> Tensor:
    """Check that features are ``[nodes, channels]``.

    Raises:
        ValueError: another number of dimensions.
    """
    if x.dim() != 2:
        raise ValueError(f"{name}: features must have shape [nodes, channels], got {tuple(x.shape)}")
    return x


def aggregate(
    g: TCGraph, x: Tensor, how: Passing, weight: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """Aggregate ``[..., K, F]`` features over ``g``, under ``weight`` ``[E]`` or the graph's own.

    Returns ``[..., M, F · number of aggregations]`` of ``out_dtype``, as :func:`torch_tcgnn.spmm` takes it.
    """
    options = {"precision": how.precision, "out_dtype": out_dtype, "node_dim": -2}
    outs = [spmm(g, x, weight, reduce=reduce, **options) for reduce in how.reduces]
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1)


def message_dtype(dtype: torch.dtype, weight: torch.dtype | None) -> torch.dtype:
    """The type of PyG's messages ``weight · x``, and of their sums: 16-bit ``x`` under wider weights gives float32."""
    if weight is None or dtype not in HALVES or torch.promote_types(dtype, weight) == dtype:
        return dtype
    return torch.float32


def aggregate_then_map(g: TCGraph, x: Tensor, how: Passing, lin: Any, weight: Tensor | None = None) -> Tensor:
    """``lin(aggregate(x))``, in the cheaper order where both give the same: sums and means commute with a matrix."""
    if commutes(lin, how) and lin.weight.shape[0] < lin.weight.shape[1]:
        out = aggregate(g, linear(x, lin.weight), how, weight)
        return out if lin.bias is None else out + lin.bias.to(out.dtype)  # under autocast the bias is wider
    return lin(aggregate(g, x, how, weight))


def commutes(lin: Any, how: Passing) -> bool:
    """Whether aggregating before the matrix of ``lin`` gives what aggregating after it gives."""
    plain = type(lin).__name__ == "Linear" and not (lin._forward_hooks or lin._forward_pre_hooks)
    return plain and how.reduces in (("sum",), ("mean",))


def _describe(x: object) -> str:
    return f"{type(x).__name__} of {len(x)}" if isinstance(x, (tuple, list)) else type(x).__name__
