"""GAT attention on the CPU: logits are ``LeakyReLU(source[j] + target[i] (+ edge))``, two numbers a node and head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from ...adjacency import Adjacency
from .attention import Chunk, Saved, aggregate, by_head, chunks, compute_dtype


def additive_attention(
    adjacency: Adjacency,
    value: Tensor,
    source: Tensor,
    target: Tensor,
    edge: Tensor | None,
    slope: float,
    dropout: float,
    seed: Tensor,
) -> tuple[Tensor, Tensor]:
    """Output and lse of value ``[K, H, F]``, source ``[K, H]``, target ``[M, H]``, edge ``[E, H]``."""
    dtype = compute_dtype(value, source, target, edge)
    source, target = source.detach().to(dtype), target.detach().to(dtype)

    def logits(chunk: Chunk) -> Tensor:
        return leaky_relu(_raw(chunk, target, source, edge), slope, inplace=True)

    return aggregate(adjacency, value, logits, dtype, value.shape[1], dropout, seed)


def additive_attention_backward(
    adjacency: Adjacency,
    transposed: Adjacency,
    value: Tensor,
    source: Tensor,
    target: Tensor,
    edge: Tensor | None,
    slope: float,
    dropout: float,
    seed: Tensor,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of value, source, target and edge (empty where there is no edge operand)."""
    dtype, heads = lse.dtype, value.shape[1]
    saved = Saved.of(adjacency, grad, out, lse, dropout, seed)
    values = by_head(value, dtype)
    wide_source, wide_target = source.detach().to(dtype), target.detach().to(dtype)
    grad_value, grad_source, grad_target = (t.new_zeros(t.shape) for t in (value, source, target))
    grad_edge = value.new_empty(0) if edge is None else edge.new_empty(edge.shape)
    for chunk in chunks(adjacency, heads):
        raw = _raw(chunk, wide_target, wide_source, edge)
        _, grad_logits = saved.at_rows(chunk, leaky_relu(raw, slope), chunk.product(saved.grad, values))
        grad_raw = _through_leaky(grad_logits, raw, slope)
        grad_target[chunk.rows] = chunk.total(grad_raw).to(target.dtype)
        if edge is not None:
            grad_edge.index_copy_(0, chunk.edge.long(), grad_raw.to(edge.dtype))
    for chunk in chunks(transposed, heads):
        raw = _raw(chunk, wide_source, wide_target, edge)
        weight, grad_logits = saved.at_cols(
            chunk,
            lambda: (leaky_relu(raw, slope), chunk.product(values, saved.grad)),  # noqa: B023
        )
        grad_source[chunk.rows] = chunk.total(_through_leaky(grad_logits, raw, slope)).to(source.dtype)
        grad_value[chunk.rows] = chunk.weighted_sum(weight, saved.grad).to(value.dtype)
    return grad_value, grad_source, grad_target, grad_edge


def _raw(chunk: Chunk, by_row: Tensor, by_col: Tensor, edge: Tensor | None) -> Tensor:
    """``[e, H]`` logits before the LeakyReLU."""
    raw = chunk.at_rows(by_row).add_(chunk.at_cols(by_col))
    return raw if edge is None else raw.add_(edge.detach().index_select(0, chunk.edge))


def _through_leaky(grad: Tensor, raw: Tensor, slope: float) -> Tensor:
    """Gradient before the LeakyReLU, in the place of ``raw``."""
    return torch.ops.aten.leaky_relu_backward.grad_input(grad, raw, slope, False, grad_input=raw)
