"""Attention weights at the edges, from operators that differentiate any number of times.

What a caller gets who asks for the weights, and how the fused operators are differentiated a second time. Holds
``[E, H]`` tensors (``[E, H, C]`` for GATv2), which the fused operators never do.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from ..kernels.dropout import dropout_factor
from .edge_softmax import edge_softmax
from .plain import Structure
from .products import sddmm, spmm
from .segment import gather_rows, segment_sum


def additive_logits(
    adj: Structure,
    adj_t: Structure,
    value: Tensor,
    source: Tensor,
    target: Tensor,
    edge: Tensor | None,
    slope: float,
) -> Tensor:
    """``[E, H]``: ``LeakyReLU(source[j] + target[i] (+ edge))``."""
    return leaky_relu(_pair_sum(adj, adj_t, source, target, edge), slope)


def gatv2_logits(
    adj: Structure, adj_t: Structure, left: Tensor, right: Tensor, att: Tensor, edge: Tensor | None, slope: float
) -> Tensor:
    """``[E, H]``: ``<att, LeakyReLU(left[j] + right[i] (+ edge))>``."""
    return (leaky_relu(_pair_sum(adj, adj_t, left, right, edge), slope) * att).sum(-1)


def dot_logits(
    adj: Structure, adj_t: Structure, query: Tensor, key: Tensor, value: Tensor, edge: Tensor | None, scale: float
) -> Tensor:
    """``[E, H]``: ``scale · <query[i], key[j] (+ edge)>``."""
    dtype = torch.promote_types(query.dtype, key.dtype)
    product = sddmm(adj, adj_t, query.to(dtype), key.to(dtype), "ieee")
    if edge is not None:
        product = product + (gather_rows(adj, query) * edge).sum(-1)
    return product * scale


def attention_weights(adj: Structure, logits: Tensor, dropout: float, seed: Tensor) -> Tensor:
    """``[E, H]`` in input edge order: softmax over the edges of each target, then dropout."""
    weight = edge_softmax(adj, logits)
    edges = torch.arange(logits.shape[0], device=logits.device)
    factor = dropout_factor(seed, edges, logits.shape[1], dropout, logits.dtype)
    return weight if factor is None else weight * factor


def weighted_values(adj: Structure, adj_t: Structure, weight: Tensor, value: Tensor, edge: Tensor | None) -> Tensor:
    """``[M, H, F]``: ``Σ weight · (value[j] (+ edge))``."""
    out = spmm(adj, adj_t, value, weight, "ieee")
    if edge is None:
        return out
    return out + segment_sum(adj, weight.unsqueeze(-1) * edge)


def _pair_sum(adj: Structure, adj_t: Structure, by_col: Tensor, by_row: Tensor, edge: Tensor | None) -> Tensor:
    pair = gather_rows(adj_t, by_col) + gather_rows(adj, by_row)
    return pair if edge is None else pair + edge
