"""Dot-product attention on the CPU: logits ``scale · <query[i], key[j] (+ edge)>``, values ``value[j] (+ edge)``."""

from __future__ import annotations

import torch
from torch import Tensor

from ...adjacency import Adjacency
from .attention import Chunk, Saved, aggregate, by_head, chunks, compute_dtype


def dot_attention(
    adjacency: Adjacency,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge: Tensor | None,
    scale: float,
    dropout: float,
    seed: Tensor,
) -> tuple[Tensor, Tensor]:
    """Output and lse of query ``[M, H, D]``, key ``[K, H, D]``, value ``[K, H, F]``, edge ``[E, H, D]``."""
    dtype = compute_dtype(query, key, value, edge)
    wide_query, queries, keys = query.detach().to(dtype), by_head(query, dtype), by_head(key, dtype)

    def logits(chunk: Chunk) -> Tensor:
        product = chunk.product(queries, keys)
        if edge is not None:
            product += (chunk.at_rows(wide_query) * _edges(chunk, edge, dtype)).sum(-1)
        return product.mul_(scale)

    width = key.shape[1] * (1 if edge is None else key.shape[2])
    return aggregate(adjacency, value, logits, dtype, width, dropout, seed, edge)


def dot_attention_backward(
    adjacency: Adjacency,
    transposed: Adjacency,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge: Tensor | None,
    scale: float,
    dropout: float,
    seed: Tensor,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value and edge (empty where there is no edge operand)."""
    dtype = lse.dtype
    width = key.shape[1] * (1 if edge is None else key.shape[2])
    saved = Saved.of(adjacency, grad, out, lse, dropout, seed)
    queries, keys, values = (by_head(t, dtype) for t in (query, key, value))
    grad_query, grad_key, grad_value = (t.new_zeros(t.shape) for t in (query, key, value))
    grad_edge = value.new_empty(0) if edge is None else edge.new_empty(edge.shape)
    for chunk in chunks(adjacency, width):
        product, grad_weight = chunk.product(queries, keys), chunk.product(saved.grad, values)
        if edge is None:
            _, grad_logits = saved.at_rows(chunk, product.mul_(scale), grad_weight)
            sums = chunk.weighted_sum(grad_logits, keys)
        else:
            edges = _edges(chunk, edge, dtype)
            grads, at_query = chunk.at_rows(saved.grad.transpose(0, 1)), chunk.at_rows(queries.transpose(0, 1))
            product += (at_query * edges).sum(-1)
            grad_weight += (grads * edges).sum(-1)
            weight, grad_logits = saved.at_rows(chunk, product.mul_(scale), grad_weight)
            share = grads.mul_(weight.unsqueeze(-1)) + at_query.mul_((grad_logits * scale).unsqueeze(-1))
            grad_edge.index_copy_(0, chunk.edge.long(), share.to(edge.dtype))
            sums = chunk.weighted_sum(grad_logits, keys) + chunk.total(edges * grad_logits.unsqueeze(-1))
        grad_query[chunk.rows] = sums.mul_(scale).to(query.dtype)
    for chunk in chunks(transposed, width):

        def recompute() -> tuple[Tensor, Tensor]:
            product, grad_weight = chunk.product(keys, queries), chunk.product(values, saved.grad)  # noqa: B023
            if edge is not None:
                edges = _edges(chunk, edge, dtype)  # noqa: B023
                product += (chunk.at_cols(queries.transpose(0, 1)) * edges).sum(-1)  # noqa: B023
                grad_weight += (chunk.at_cols(saved.grad.transpose(0, 1)) * edges).sum(-1)  # noqa: B023
            return product.mul_(scale), grad_weight

        weight, grad_logits = saved.at_cols(chunk, recompute)
        grad_key[chunk.rows] = chunk.weighted_sum(grad_logits, queries).mul_(scale).to(key.dtype)
        grad_value[chunk.rows] = chunk.weighted_sum(weight, saved.grad).to(value.dtype)
    return grad_query, grad_key, grad_value, grad_edge


def _edges(chunk: Chunk, edge: Tensor, dtype: torch.dtype) -> Tensor:
    return edge.detach().index_select(0, chunk.edge).to(dtype)
