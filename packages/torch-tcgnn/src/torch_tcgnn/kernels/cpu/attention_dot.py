"""Dot-product attention on the CPU: logits ``scale · <query[i], key[j] (+ edge)>``, values ``value[j] (+ edge)``."""

from __future__ import annotations

import torch
from torch import Tensor

from ...adjacency import Adjacency
from .attention import Held, Softmax, aggregate, at_edges, by_head, compute_dtype, fits, table
from .chunk import Chunk, chunks, numbers_an_entry
from .sddmm import padded


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
    queries, keys = padded(by_head(query, dtype)), padded(table(key, dtype))

    def logits(chunk: Chunk) -> Tensor:
        product = chunk.product(queries, keys)
        if edge is not None:
            product += _row_products(chunk, table(query, dtype), at_edges(chunk, edge, dtype))
        return product.mul_(scale)

    return aggregate(adjacency, value, logits, dtype, _width(key, edge), dropout, seed, edge)


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
    dtype, (num_cols, heads, _), width = lse.dtype, key.shape, _width(key, edge)
    grad_query, grad_key, grad_value = (t.new_zeros(t.shape) for t in (query, key, value))
    grad_edge = value.new_empty(0) if edge is None else edge.new_zeros(edge.shape)
    if value.numel() == 0:
        return grad_query, grad_key, grad_value, grad_edge
    softmax = Softmax.of(grad, out, lse, dropout, seed)
    queries, keys = table(query, dtype), table(key, dtype)
    queries_of_rows, keys_of_cols = padded(by_head(query, dtype)), padded(keys)
    values_of_cols = padded(table(value, dtype))
    held = None
    if fits(adjacency, 2 * heads, dtype):
        held = [Held(adjacency, transposed, (heads, adjacency.num_edges), 1, dtype) for _ in range(2)]
    for chunk in chunks(adjacency, width, heads, num_cols):
        logits = chunk.product(queries_of_rows, keys_of_cols)
        grad_weight = chunk.product(softmax.grad_by_head, values_of_cols)
        edges = None if edge is None else at_edges(chunk, edge, dtype)
        if edges is not None:
            logits += _row_products(chunk, queries, edges)
            grad_weight += _row_products(chunk, softmax.grad, edges)
        weight, grad_logits = softmax.at_rows(chunk, logits.mul_(scale), grad_weight)
        sums = chunk.weighted_sum(grad_logits, keys)
        if edge is not None and edges is not None:
            share, at_query = weight.t().unsqueeze(-1), (grad_logits.t() * scale).unsqueeze(-1)
            share = softmax.grad.index_select(0, chunk.row) * share + queries.index_select(0, chunk.row) * at_query
            grad_edge.index_copy_(0, chunk.edge.long(), share.to(edge.dtype))
            sums = sums + chunk.total(edges * grad_logits.t().unsqueeze(-1))
        torch.mul(sums, scale, out=grad_query[chunk.rows])
        if held is not None:
            held[0].put(chunk, weight)
            held[1].put(chunk, grad_logits)
    if held is None:
        of_rows = padded(by_head(key, dtype)), padded(by_head(value, dtype))
        of_cols = padded(queries), padded(softmax.grad)

        def found(chunk: Chunk) -> tuple[Tensor, Tensor]:
            logits, grad_weight = (chunk.product(rows, cols) for rows, cols in zip(of_rows, of_cols))
            if edge is not None:
                edges = at_edges(chunk, edge, dtype)
                logits += _col_products(chunk, queries, edges)
                grad_weight += _col_products(chunk, softmax.grad, edges)
            return softmax.at_cols(chunk, logits.mul_(scale), grad_weight)
    else:
        weights, grads = held

        def found(chunk: Chunk) -> tuple[Tensor, Tensor]:
            return weights.at(chunk), grads.at(chunk)

    for chunk in chunks(transposed, width, heads, adjacency.num_rows):
        weight, grad_logits = found(chunk)
        torch.mul(chunk.weighted_sum(grad_logits, queries), scale, out=grad_key[chunk.rows])
        grad_value[chunk.rows] = chunk.weighted_sum(weight, softmax.grad)
    return grad_query, grad_key, grad_value, grad_edge


def _width(key: Tensor, edge: Tensor | None) -> int:
    return numbers_an_entry(key.shape[1]) if edge is None else key.shape[1] * key.shape[2]


def _row_products(chunk: Chunk, rows: Tensor, edges: Tensor) -> Tensor:
    """``[H, e]``: products of ``[M, H, D]`` at the rows with ``[e, H, D]``."""
    return (rows.index_select(0, chunk.row) * edges).sum(-1).t()


def _col_products(chunk: Chunk, cols: Tensor, edges: Tensor) -> Tensor:
    return (cols.index_select(0, chunk.col) * edges).sum(-1).t()
