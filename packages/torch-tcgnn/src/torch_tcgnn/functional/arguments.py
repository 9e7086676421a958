"""Argument checks of the functional operators: each error names the argument and what it got."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..graph import TCGraph
from ..graph_arguments import check_choice as check_choice
from ..graph_arguments import check_finite as check_finite
from ..graph_arguments import check_probability as check_probability
from ..graph_arguments import check_tensor as check_tensor
from ..graph_arguments import is_count
from ..ops.plain import Structure, needs_grad, plain_eager

Precision = Literal["ieee", "tf32"]
Reduce = Literal["sum", "mean", "max", "min"]
PRECISIONS: tuple[Precision, ...] = ("ieee", "tf32")
REDUCES: tuple[Reduce, ...] = ("sum", "mean", "max", "min")
FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
HALVES = (torch.float16, torch.bfloat16)
NODE_DIMS = (0, -2)


def structure(g: TCGraph, *inputs: Tensor | None, dtype: torch.dtype | None = None) -> Structure:
    """A graph as an operator on ``inputs`` takes it: an adjacency where the dispatcher can be passed by.

    ``dtype``: of the features that tensor cores may multiply; ``None`` for operators that run on rows.
    """
    return g.prepared(dtype) if plain_eager(*inputs) else g.operands(dtype)


def structures(g: TCGraph, *inputs: Tensor | None, dtype: torch.dtype | None = None) -> tuple[Structure, Structure]:
    """:func:`structure` of a graph and, where a gradient will flow to one of ``inputs``, of its transpose."""
    return structure(g, *inputs, dtype=dtype), structure(g.t(), *inputs, dtype=dtype) if needs_grad(*inputs) else []


def resolve_precision(precision: Precision | None, x: Tensor) -> Precision:
    """The precision a call runs at: the argument, else PyTorch's TF32 switch."""
    if precision is None:
        return "tf32" if x.is_cuda and tf32_allowed() else "ieee"
    check_choice("precision", precision, PRECISIONS)
    return precision


def resolve_out_dtype(out_dtype: torch.dtype | None, x: Tensor) -> torch.dtype:
    """The type of a result: the argument, else that of ``x``; float16 and bfloat16 may give float32.

    Raises:
        TypeError: ``out_dtype`` is no dtype.
        ValueError: a dtype that features of this type do not give.
    """
    if out_dtype is None:
        return x.dtype
    if not isinstance(out_dtype, torch.dtype):
        raise TypeError(f"out_dtype must be a torch.dtype, got {out_dtype!r}")
    if out_dtype != x.dtype and not (x.dtype in HALVES and out_dtype == torch.float32):
        allowed = f"{x.dtype} or torch.float32" if x.dtype in HALVES else f"{x.dtype}"
        raise ValueError(f"out_dtype must be {allowed} where x is {x.dtype}, got {out_dtype}")
    return out_dtype


def tf32_allowed() -> bool:
    """PyTorch's TF32 switch for matrix products, however it was set (the older switches show here too)."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


# What torch.compiler.assume_constant_result sets; calling it would import Triton with this package.
tf32_allowed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def check_graph(g: object) -> None:
    """Raise where ``g`` is not translated."""
    if not isinstance(g, TCGraph):
        got = type(g).__name__
        raise TypeError(f"g must be a TCGraph, got {got}: translate with TCGraph.from_edge_index or as_graph")


def check_floating(name: str, t: Tensor, what: str = "") -> None:
    """Raise where ``t`` is no dense tensor of a type that kernels compute in."""
    check_tensor(name, t)
    if t.dtype not in FLOATING:
        wanted = "float32, float64, float16 or bfloat16" if t.is_floating_point() else "floating point"
        raise TypeError(f"{name}{what} must be {wanted}, got {t.dtype}")


def check_rows(name: str, t: Tensor, rows: int, g: TCGraph) -> None:
    check_tensor(name, t)
    if t.dim() == 0 or t.shape[0] != rows:
        raise ValueError(f"{name} must have {rows} rows for {g!r}, got shape {tuple(t.shape)}")
    if t.device != g.device:
        raise ValueError(f"{name} is on {t.device}, but the graph is on {g.device}: move one of them with .to()")


def check_features(name: str, t: Tensor, rows: int, g: TCGraph, dims: tuple[int, ...]) -> None:
    check_floating(name, t, ": features")
    if t.dim() not in dims:
        raise ValueError(f"{name} must have {' or '.join(map(str, dims))} dimensions, got shape {tuple(t.shape)}")
    check_rows(name, t, rows, g)


def check_batch(name: str, t: Tensor, rows: int, g: TCGraph) -> None:
    """Raise where ``t`` is not ``[..., rows, F]`` on the graph's device."""
    check_floating(name, t, ": features")
    if t.dim() < 2 or t.shape[-2] != rows:
        wanted = f"shape [..., {rows}, F] with node_dim=-2"
        raise ValueError(f"{name} must have {wanted} for {g!r}, got shape {tuple(t.shape)}")
    if t.device != g.device:
        raise ValueError(f"{name} is on {t.device}, but the graph is on {g.device}: move one of them with .to()")


def check_node_dim(node_dim: object) -> None:
    """Raise where ``node_dim`` is neither 0 nor -2."""
    if not is_count(node_dim) or node_dim not in NODE_DIMS:
        raise ValueError(f"node_dim must be {' or '.join(map(str, NODE_DIMS))}, got {node_dim!r}")


def check_edges(name: str, t: Tensor, g: TCGraph) -> None:
    check_floating(name, t)
    if t.dim() == 0 or t.shape[0] != g.num_edges:
        raise ValueError(f"{name} must have {g.num_edges} rows, one an edge, got shape {tuple(t.shape)}")
    if t.device != g.device:
        raise ValueError(f"{name} is on {t.device}, but the graph is on {g.device}: move one of them with .to()")


def check_weight(weight: Tensor, x: Tensor, g: TCGraph, node_dim: int = 0) -> None:
    check_edges("weight", weight, g)
    if weight.dim() == 2 and (x.dim() == 2 or node_dim != 0):
        wanted, got = "[K, H, F]", f"{tuple(x.shape)}"
        if node_dim != 0:
            wanted, got = f"{wanted} and node_dim=0", f"{got} and node_dim={node_dim}"
        raise ValueError(f"weight of shape {tuple(weight.shape)} needs x of shape {wanted}, got {got}")
    if weight.dim() == 2 and weight.shape[1] != x.shape[1]:
        raise ValueError(f"weight has {weight.shape[1]} heads, x has {x.shape[1]}")
    if weight.dim() > 2:
        raise ValueError(f"weight must have shape [E] or [E, H], got {tuple(weight.shape)}")
