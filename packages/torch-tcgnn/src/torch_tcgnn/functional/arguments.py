"""Argument checks of the functional operators: each error names the argument and what it got."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..graph import TCGraph
from ..graph_arguments import check_choice as check_choice
from ..ops.plain import Structure, needs_grad, plain_eager

Precision = Literal["ieee", "tf32"]
Reduce = Literal["sum", "mean", "max", "min"]
PRECISIONS: tuple[Precision, ...] = ("ieee", "tf32")
REDUCES: tuple[Reduce, ...] = ("sum", "mean", "max", "min")


def structure(g: TCGraph, *inputs: Tensor | None) -> Structure:
    """A graph as an operator on ``inputs`` takes it: an adjacency where the dispatcher can be passed by."""
    return g.prepared() if plain_eager(*inputs) else g.operands()


def structures(g: TCGraph, *inputs: Tensor | None) -> tuple[Structure, Structure]:
    """:func:`structure` of a graph and, where a gradient will flow to one of ``inputs``, of its transpose."""
    return structure(g, *inputs), structure(g.t(), *inputs) if needs_grad(*inputs) else []


def resolve_precision(precision: Precision | None, x: Tensor) -> Precision:
    """The precision a call runs at: the argument, else PyTorch's TF32 switch."""
    if precision is None:
        return "tf32" if x.is_cuda and tf32_allowed() else "ieee"
    check_choice("precision", precision, PRECISIONS)
    return precision


def tf32_allowed() -> bool:
    """PyTorch's TF32 switch for matrix products, however it was set (the older switches show here too)."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


# What torch.compiler.assume_constant_result sets; calling it would import Triton with this package.
tf32_allowed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def check_rows(name: str, t: Tensor, rows: int, g: TCGraph) -> None:
    if t.dim() == 0 or t.shape[0] != rows:
        raise ValueError(f"{name} must have {rows} rows for {g!r}, got shape {tuple(t.shape)}")
    if t.device != g.device:
        raise ValueError(f"{name} is on {t.device}, but the graph is on {g.device}: move one of them with .to()")


def check_features(name: str, t: Tensor, rows: int, g: TCGraph, dims: tuple[int, ...]) -> None:
    if not isinstance(t, Tensor):
        raise TypeError(f"{name} must be a Tensor, got {type(t).__name__}")
    if not t.is_floating_point():
        raise TypeError(f"{name}: features must be floating point, got {t.dtype}")
    if t.dim() not in dims:
        raise ValueError(f"{name} must have {' or '.join(map(str, dims))} dimensions, got shape {tuple(t.shape)}")
    check_rows(name, t, rows, g)


def check_edges(name: str, t: Tensor, g: TCGraph) -> None:
    if not isinstance(t, Tensor):
        raise TypeError(f"{name} must be a Tensor, got {type(t).__name__}")
    if not t.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {t.dtype}")
    if t.dim() == 0 or t.shape[0] != g.num_edges:
        raise ValueError(f"{name} must have {g.num_edges} rows, one an edge, got shape {tuple(t.shape)}")
    if t.device != g.device:
        raise ValueError(f"{name} is on {t.device}, but the graph is on {g.device}: move one of them with .to()")


def check_weight(weight: Tensor, x: Tensor, g: TCGraph) -> None:
    check_edges("weight", weight, g)
    if weight.dim() == 2 and x.dim() == 3 and weight.shape[1] != x.shape[1]:
        raise ValueError(f"weight has {weight.shape[1]} heads, x has {x.shape[1]}")
    if weight.dim() > 2:
        raise ValueError(f"weight must have shape [E] or [E, H], got {tuple(weight.shape)}")
