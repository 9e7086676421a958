"""Graph attention on a :class:`TCGraph`: check the arguments, then call the fused operator.

``M`` targets, ``K`` sources, ``E`` edges ``j → i`` in input order, ``H`` heads. Every target's weights are a softmax
over the edges that enter it; targets without edges give 0. Edge weights of the graph are not used. Peak memory beside
the operands is ``O(M·H·F)``; only ``return_attention=True``, and a second derivative, hold tensors of the size of all
edges.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..graph import TCGraph
from ..ops.attention import ADDITIVE, DOT, GATV2, Form, attention
from ..ops.attention_weights import attention_weights
from .arguments import (
    check_edges,
    check_features,
    check_finite,
    check_floating,
    check_graph,
    check_probability,
    structure,
    structures,
)


def gat_attention(
    g: TCGraph,
    h: Tensor,
    alpha_src: Tensor,
    alpha_dst: Tensor,
    *,
    edge_logit: Tensor | None = None,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    training: bool = False,
    return_attention: bool = False,
) -> Any:
    """GAT: ``out[i] = Σ_j α_ij h[j]``, ``α = softmax LeakyReLU(alpha_src[j] + alpha_dst[i] (+ edge_logit))``.

    Args:
        g: the graph.
        h: ``[K, H, F]`` source features; float32, float64, float16 or bfloat16. Arithmetic is float32 or better.
        alpha_src: ``[K, H]`` source part of the logits, ``<a_src, h_j>``.
        alpha_dst: ``[M, H]`` target part of the logits.
        edge_logit: ``[E, H]`` edge part of the logits. −inf removes an edge.
        negative_slope: of the LeakyReLU.
        dropout: probability ``p`` in ``[0, 1]`` that a weight becomes 0 in training; the others grow by ``1/(1−p)``.
        training: whether dropout acts. Its seed comes from PyTorch's generator of the graph's device.
        return_attention: also return the weights.

    Returns:
        ``[M, H, F]`` of ``h.dtype``; with ``return_attention`` a pair of that and the weights ``[E, H]`` after dropout.

    Raises:
        ValueError: a shape or device that does not fit, or ``dropout`` outside ``[0, 1]``.
        TypeError: an operand is not floating point.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1], [2, 2]]), num_nodes=3)
        >>> h = torch.tensor([1.0, 2.0, 4.0]).view(3, 1, 1)
        >>> src, dst = torch.tensor([[1.0], [-2.0], [0.0]]), torch.tensor([[0.0], [0.0], [0.5]])
        >>> out, alpha = tcg.gat_attention(g, h, src, dst, return_attention=True)
        >>> alpha.flatten(), out.flatten()
        (tensor([0.8581, 0.1419]), tensor([0.0000, 0.0000, 1.1419]))

    Reference:
        Graph attention networks (Veličković et al., 2018), equations 3 to 5.
    """
    check_graph(g)
    check_finite("negative_slope", negative_slope)
    check_features("h", h, g.num_cols, g, dims=(3,))
    heads = h.shape[1]
    _check_operand("alpha_src", alpha_src, g.num_cols, (heads,), "h", h, g)
    _check_operand("alpha_dst", alpha_dst, g.num_rows, (heads,), "h", h, g)
    if edge_logit is not None:
        _check_edge_operand("edge_logit", edge_logit, (heads,), "h", h, g)
    tensors = [h, alpha_src, alpha_dst, edge_logit]
    return _attend(ADDITIVE, g, tensors, negative_slope, dropout, training, return_attention)


def gatv2_attention(
    g: TCGraph,
    left: Tensor,
    right: Tensor,
    att: Tensor,
    *,
    edge: Tensor | None = None,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    training: bool = False,
    return_attention: bool = False,
) -> Any:
    """GATv2: ``out[i] = Σ_j α_ij left[j]``, ``α = softmax <att, LeakyReLU(left[j] + right[i] (+ edge))>``.

    Args:
        g: the graph.
        left: ``[K, H, C]`` transformed source features, also the values.
        right: ``[M, H, C]`` transformed target features.
        att: ``[H, C]``.
        edge: ``[E, H, C]`` transformed edge features.
        negative_slope: of the LeakyReLU.
        dropout: see :func:`gat_attention`.
        training: see :func:`gat_attention`.
        return_attention: also return the weights; holds ``[E, H, C]`` to compute them.

    Returns:
        ``[M, H, C]`` of ``left.dtype``; with ``return_attention`` a pair of that and the weights ``[E, H]``.

    Raises:
        ValueError: a shape or device that does not fit, or ``dropout`` outside ``[0, 1]``.
        TypeError: an operand is not floating point.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1], [2, 2]]), num_nodes=3)
        >>> left = torch.tensor([1.0, 2.0, 4.0]).view(3, 1, 1)
        >>> tcg.gatv2_attention(g, left, torch.zeros(3, 1, 1), torch.ones(1, 1)).flatten()
        tensor([0.0000, 0.0000, 1.7311])

    Reference:
        How attentive are graph attention networks? (Brody et al., 2022), equation 7.
    """
    check_graph(g)
    check_finite("negative_slope", negative_slope)
    check_features("left", left, g.num_cols, g, dims=(3,))
    _check_operand("right", right, g.num_rows, tuple(left.shape[1:]), "left", left, g)
    check_floating("att", att)
    if att.shape != left.shape[1:]:
        raise ValueError(f"att must have shape {tuple(left.shape[1:])} as left has, got {tuple(att.shape)}")
    if att.device != g.device:
        raise ValueError(f"att is on {att.device}, but the graph is on {g.device}: move one of them with .to()")
    if edge is not None:
        _check_edge_operand("edge", edge, tuple(left.shape[1:]), "left", left, g)
    return _attend(GATV2, g, [left, right, att, edge], negative_slope, dropout, training, return_attention)


def dot_attention(
    g: TCGraph,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    edge: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    training: bool = False,
    return_attention: bool = False,
) -> Any:
    """Dot-product attention: ``out[i] = Σ_j α_ij (v[j] (+ edge))``, ``α = softmax scale · <q[i], k[j] (+ edge)>``.

    Args:
        g: the graph.
        q: ``[M, H, D]`` queries of the targets.
        k: ``[K, H, D]`` keys of the sources.
        v: ``[K, H, Dv]`` values of the sources.
        edge: ``[E, H, D]``, added to keys and values; needs ``Dv = D``.
        scale: factor of the logits; default ``1/√D``.
        dropout: see :func:`gat_attention`.
        training: see :func:`gat_attention`.
        return_attention: also return the weights.

    Returns:
        ``[M, H, Dv]`` of ``v.dtype``; with ``return_attention`` a pair of that and the weights ``[E, H]``.

    Raises:
        ValueError: a shape or device that does not fit, or ``dropout`` outside ``[0, 1]``.
        TypeError: an operand is not floating point.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1], [2, 2]]), num_nodes=3)
        >>> v = torch.tensor([1.0, 2.0, 4.0]).view(3, 1, 1)
        >>> tcg.dot_attention(g, torch.zeros(3, 1, 1), v, v).flatten()
        tensor([0.0000, 0.0000, 1.5000])

    Reference:
        Masked label prediction (Shi et al., 2021), equations 3 and 4; edges as in PyG's ``TransformerConv``.
    """
    check_graph(g)
    check_features("k", k, g.num_cols, g, dims=(3,))
    heads, width = k.shape[1:]
    _check_operand("q", q, g.num_rows, (heads, width), "k", k, g)
    check_features("v", v, g.num_cols, g, dims=(3,))
    if v.shape[1] != heads:
        raise ValueError(f"v must have {heads} heads as k has, got shape {tuple(v.shape)}")
    if edge is not None:
        _check_edge_operand("edge", edge, (heads, width), "k", k, g)
        if v.shape[2] != width:
            raise ValueError(
                f"edge is added to keys and values: v must have shape {tuple(k.shape)}, got {tuple(v.shape)}"
            )
    if scale is None:
        scale = 1.0 / math.sqrt(max(width, 1))
    check_finite("scale", scale)
    return _attend(DOT, g, [q, k, v, edge], scale, dropout, training, return_attention)


def cosine_attention(
    g: TCGraph,
    x: Tensor,
    beta: Tensor | float = 1.0,
    *,
    dropout: float = 0.0,
    training: bool = False,
    return_attention: bool = False,
) -> Any:
    """AGNN: ``out[i] = Σ_j α_ij x[j]``, ``α = softmax beta · cos(x[i], x[j])``.

    Args:
        g: the graph, with as many targets as sources.
        x: ``[N, F]`` or ``[N, H, F]``; normalised for the cosine only (norms below 1e-12 count as 1e-12).
        beta: number, or tensor that broadcasts against ``x``.
        dropout: see :func:`gat_attention`.
        training: see :func:`gat_attention`.
        return_attention: also return the weights.

    Returns:
        Shape and dtype of ``x``; with ``return_attention`` a pair of that and the weights ``[E]`` or ``[E, H]``.

    Raises:
        ValueError: a shape or device that does not fit, a bipartite graph, or ``dropout`` outside ``[0, 1]``.
        TypeError: ``x`` is not floating point.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> g = tcg.TCGraph.from_edge_index(torch.tensor([[1, 2, 3], [0, 0, 1]]), num_nodes=4).with_self_loops()
        >>> tcg.cosine_attention(g, torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0], [0.0, 0.0]]))
        tensor([[1.4746, 2.2649],
                [0.0000, 1.4621],
                [1.0000, 0.0000],
                [0.0000, 0.0000]])

    Reference:
        Attention-based graph neural network (Thekumparampil et al., 2018), equation 6; TC-GNN's AGNN has no softmax.
    """
    check_graph(g)
    if g.num_rows != g.num_cols:
        raise ValueError(f"g must have as many targets as sources, got {g.num_rows} and {g.num_cols}")
    check_features("x", x, g.num_cols, g, dims=(2, 3))
    value = x.unsqueeze(1) if x.dim() == 2 else x
    key = normalize(x, dim=-1, eps=1e-12)
    query = (_checked_beta(beta, x) * key).view_as(value)
    found = dot_attention(
        g, query, key.view_as(value), value, scale=1.0, dropout=dropout, training=training,
        return_attention=return_attention,
    )  # fmt: skip
    if x.dim() == 3:
        return found
    return (found[0].squeeze(1), found[1].squeeze(1)) if return_attention else found.squeeze(1)


def _checked_beta(beta: Tensor | float, x: Tensor) -> Tensor | float:
    """``beta``, unless its product with ``x`` has another shape or device than ``x``."""
    if not isinstance(beta, Tensor):
        check_finite("beta", beta)
        return beta
    check_floating("beta", beta)
    fits = beta.dim() <= x.dim() and all(b in (1, n) for b, n in zip(beta.shape[::-1], x.shape[::-1]))
    if not fits:
        raise ValueError(f"beta must broadcast to x of shape {tuple(x.shape)}, got {tuple(beta.shape)}")
    if beta.device != x.device and beta.dim() > 0:
        raise ValueError(f"beta is on {beta.device}, but x is on {x.device}: move one of them with .to()")
    return beta


def _attend(
    form: Form,
    g: TCGraph,
    tensors: list[Tensor | None],
    factor: float,
    dropout: float,
    training: bool,
    with_weights: bool,
) -> Any:
    check_probability("dropout", dropout)
    adj, adj_t = structures(g, *tensors)
    dropout = float(dropout) if training else 0.0
    seed = torch.empty(0, dtype=torch.int64, device=g.device)
    if dropout > 0.0:
        seed = torch.randint(2**63 - 1, (1,), device=g.device)
    out, _ = attention(form, adj, adj_t, *tensors, float(factor), dropout, seed)
    if not with_weights:
        return out
    adj_t = adj_t or structure(g.t(), *tensors)
    return out, attention_weights(adj, form.logits(adj, adj_t, *tensors, float(factor)), dropout, seed)


def _check_operand(
    name: str, t: Tensor, rows: int, trailing: tuple[int, ...], like: str, other: Tensor, g: TCGraph
) -> None:
    check_features(name, t, rows, g, dims=(1 + len(trailing),))
    if t.shape[1:] != trailing:
        raise ValueError(
            f"{name} must have shape {(rows, *trailing)} to fit {like} of shape {tuple(other.shape)}, "
            f"got {tuple(t.shape)}"
        )


def _check_edge_operand(name: str, t: Tensor, trailing: tuple[int, ...], like: str, other: Tensor, g: TCGraph) -> None:
    check_edges(name, t, g)
    if t.shape[1:] != trailing:
        shape = (g.num_edges, *trailing)
        raise ValueError(
            f"{name} must have shape {shape} to fit {like} of shape {tuple(other.shape)}, got {tuple(t.shape)}"
        )
