"""Aggregation and edge operators on a :class:`TCGraph`: check the arguments, then call the op.

``M`` targets, ``K`` sources, ``E`` edges in input order, ``H`` heads, ``F`` features. All are differentiable in their
floating-point arguments, any number of times, and run inside ``torch.compile(fullgraph=True)``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..graph import TCGraph
from ..ops import edge_softmax as softmax
from ..ops import extremum, products
from ..ops import segment as segments
from .arguments import (
    HALVES,
    REDUCES,
    Precision,
    Reduce,
    check_batch,
    check_choice,
    check_edges,
    check_features,
    check_finite,
    check_graph,
    check_node_dim,
    check_rows,
    check_weight,
    resolve_out_dtype,
    resolve_precision,
    structure,
    structures,
)


def spmm(
    g: TCGraph,
    x: Tensor,
    weight: Tensor | None = None,
    *,
    reduce: Reduce = "sum",
    precision: Precision | None = None,
    out_dtype: torch.dtype | None = None,
    node_dim: int = 0,
) -> Tensor:
    """Aggregate source features at the targets: ``out[i] = reduce over edges j → i of weight · x[j]``.

    Args:
        g: the graph.
        x: ``[K, F]`` or ``[K, H, F]``; float32, float64, float16 or bfloat16. Accumulation is float32 or better. With
            ``node_dim=-2``, ``[..., K, F]``: any batch of features over one graph.
        weight: ``[E]`` or, for three-dimensional ``x``, ``[E, H]``; default: ``g.weight``, or unweighted. With
            ``node_dim=-2`` only ``[E]``.
        reduce: ``"mean"`` divides the sum, in float32 or better, by the number of edges; targets without edges give 0
            in every mode.
        precision: ``"ieee"`` (float32 accuracy, the default) or ``"tf32"`` for float32 ``x`` on tensor cores; default
            follows ``torch.backends.cuda.matmul.fp32_precision``.
        out_dtype: ``torch.float32`` keeps the float32 results of float16 or bfloat16 ``x`` as they are, and takes their
            gradient in float32; default: ``x.dtype``.
        node_dim: dimension of ``x``, and of the result, that counts nodes: 0 or -2.

    Returns:
        ``[M, F]`` or ``[M, H, F]``, with ``node_dim=-2`` ``[..., M, F]``, of ``out_dtype``. A sum beyond 65504 in
        float16 is Inf.

    Raises:
        ValueError: a shape, device or choice that does not fit; an ``out_dtype`` that ``x`` does not give.
        TypeError: ``x`` or ``weight`` is not floating point, ``out_dtype`` is no dtype.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1, 1], [1, 0, 1]]), num_nodes=2)
        >>> tcg.spmm(g, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.5, 1.0, 2.0]))
        tensor([[3.0000, 4.0000],
                [6.5000, 9.0000]])

    Reference:
        TC-GNN (USENIX ATC 2023), section 4; backward over the transposed graph.
    """
    check_graph(g)
    check_choice("reduce", reduce, REDUCES)
    check_node_dim(node_dim)
    if node_dim == 0:
        check_features("x", x, g.num_cols, g, dims=(2, 3))
    else:
        check_batch("x", x, g.num_cols, g)
    precision, dtype = resolve_precision(precision, x), resolve_out_dtype(out_dtype, x)
    weight = g.weight if weight is None else weight
    if weight is not None:
        check_weight(weight, x, g, node_dim)
    if x.dim() == 2 or (weight is not None and weight.dim() == 2):
        return _aggregate(g, x, weight, reduce, precision, dtype)
    x = x if node_dim == 0 else x.movedim(node_dim, 0)
    out = _aggregate(g, x.flatten(1), weight, reduce, precision, dtype)  # under one weight, the rest are just features
    out = out.view(g.num_rows, *x.shape[1:])
    return out if node_dim == 0 else out.movedim(0, node_dim).contiguous()


def _aggregate(
    g: TCGraph, x: Tensor, weight: Tensor | None, reduce: Reduce, precision: Precision, dtype: torch.dtype
) -> Tensor:
    if reduce in ("max", "min"):
        return extremum.spmm_extremum(structure(g, x, weight), x, weight, reduce == "max")[0].to(dtype)
    adj, adj_t = structures(g, x, weight, dtype=x.dtype)
    sums = torch.float32 if reduce == "mean" and x.dtype in HALVES else dtype
    out = products.spmm(adj, adj_t, x, weight, precision, None if sums == x.dtype else sums)
    return _divide(out, g).to(dtype) if reduce == "mean" else out


def _divide(total: Tensor, g: TCGraph) -> Tensor:
    """Row sums to row means; float16 cannot hold the degree of a hub, so degrees are float32 or better."""
    degree = g.adjacency.rowptr.diff().clamp(min=1).to(torch.promote_types(total.dtype, torch.float32))
    return (total / degree.view(-1, *[1] * (total.dim() - 1))).to(total.dtype)


def sddmm(
    g: TCGraph, a: Tensor, b: Tensor, *, scale: float | Tensor = 1.0, precision: Precision | None = None
) -> Tensor:
    """Sampled product: ``out[e] = scale · <a[i], b[j]>`` for every edge ``e: j → i``.

    Args:
        g: the graph.
        a: ``[M, D]`` or ``[M, H, D]`` target operand.
        b: ``[K, D]`` or ``[K, H, D]`` source operand of the same dtype.
        scale: factor; a tensor of one number may be learned.
        precision: see :func:`spmm`.

    Returns:
        ``[E]`` or ``[E, H]`` in input edge order.

    Raises:
        ValueError: shapes or devices that do not fit.
        TypeError: an operand is not floating point, or dtypes differ.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
        >>> tcg.sddmm(g, torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [5.0]]))
        tensor([6., 5.])

    Reference:
        TC-GNN (USENIX ATC 2023), section 4 (edge feature computation).
    """
    check_graph(g)
    check_features("a", a, g.num_rows, g, dims=(2, 3))
    check_features("b", b, g.num_cols, g, dims=(2, 3))
    if a.shape[1:] != b.shape[1:]:
        raise ValueError(f"a and b must agree after their first dimension, got {tuple(a.shape)} and {tuple(b.shape)}")
    if a.dtype != b.dtype:
        raise TypeError(f"a and b must have one dtype, got {a.dtype} and {b.dtype}")
    if not isinstance(scale, Tensor):  # a tensor of one number carries a gradient
        check_finite("scale", scale)
    elif scale.numel() != 1:
        raise ValueError(f"scale must be one number, got shape {tuple(scale.shape)}")
    adj, adj_t = structures(g, a, b, dtype=a.dtype)
    out = products.sddmm(adj, adj_t, a, b, resolve_precision(precision, a))
    if isinstance(scale, Tensor):
        return out * scale.reshape(())
    return out if scale == 1.0 else out * scale


def edge_softmax(g: TCGraph, logits: Tensor) -> Tensor:
    """Softmax over the edges that enter each target.

    Args:
        g: the graph.
        logits: ``[E]`` or ``[E, H]`` in input edge order.

    Returns:
        Same shape; sums to 1 over the edges of each target, or is 0 at all of them where all logits are −inf.

    Raises:
        ValueError: wrong number of edges, or another device.
        TypeError: not floating point.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1, 2], [2, 2, 0]]), num_nodes=3)
        >>> tcg.edge_softmax(g, torch.tensor([1.0, 1.0, 7.0]))
        tensor([0.5000, 0.5000, 1.0000])

    Reference:
        Graph attention networks (Veličković et al., 2018), equation 3.
    """
    check_graph(g)
    check_edges("logits", logits, g)
    if logits.dim() not in (1, 2):
        raise ValueError(f"logits must have shape [E] or [E, H], got {tuple(logits.shape)}")
    return softmax.edge_softmax(structure(g, logits), logits)


def segment(g: TCGraph, values: Tensor, reduce: Reduce = "sum") -> Tensor:
    """Reduce edge values at their targets.

    Args:
        g: the graph.
        values: ``[E, ...]`` in input edge order.
        reduce: ``"sum"``, ``"mean"``, ``"max"`` or ``"min"``; targets without edges give 0.

    Returns:
        ``[M, ...]``.

    Raises:
        ValueError: wrong number of edges, another device, or an unknown ``reduce``.
        TypeError: not floating point.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1, 2], [2, 2, 0]]), num_nodes=3)
        >>> tcg.segment(g, torch.tensor([1.0, 2.0, 4.0]), "max")
        tensor([4., 0., 2.])

    Reference:
        The reduction of TC-GNN (USENIX ATC 2023), section 2.
    """
    check_graph(g)
    check_choice("reduce", reduce, REDUCES)
    check_edges("values", values, g)
    if reduce in ("sum", "mean"):
        out = segments.segment_sum(structure(g, values), values)
        return _divide(out, g) if reduce == "mean" else out
    index = gather_dst(g, torch.arange(g.num_rows, device=g.device))
    index = index.view(-1, *[1] * (values.dim() - 1)).expand_as(values)
    out = values.new_zeros(g.num_rows, *values.shape[1:])
    return out.scatter_reduce(0, index, values, "amax" if reduce == "max" else "amin", include_self=False)


def gather_dst(g: TCGraph, rows: Tensor) -> Tensor:
    """``[E, ...]``: for every edge, the value of its target.

    Args:
        g: the graph.
        rows: ``[M, ...]``.

    Raises:
        ValueError: wrong number of rows, or another device.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
        >>> tcg.gather_dst(g, torch.tensor([10.0, 20.0]))
        tensor([20., 10.])

    Reference:
        The scatter phase of TC-GNN (USENIX ATC 2023), section 2.
    """
    check_graph(g)
    check_rows("rows", rows, g.num_rows, g)
    return segments.gather_rows(structure(g, rows), rows)


def gather_src(g: TCGraph, rows: Tensor) -> Tensor:
    """``[E, ...]``: for every edge, the value of its source.

    Args:
        g: the graph.
        rows: ``[K, ...]``.

    Raises:
        ValueError: wrong number of rows, or another device.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
        >>> tcg.gather_src(g, torch.tensor([10.0, 20.0]))
        tensor([10., 20.])

    Reference:
        The scatter phase of TC-GNN (USENIX ATC 2023), section 2.
    """
    check_graph(g)
    check_rows("rows", rows, g.num_cols, g)
    return segments.gather_rows(structure(g.t(), rows), rows)
