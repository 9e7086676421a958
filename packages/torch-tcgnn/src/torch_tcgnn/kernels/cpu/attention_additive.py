"""GAT attention on the CPU: logits are ``LeakyReLU(source[j] + target[i] (+ edge))``, two numbers a node and head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from ...adjacency import Adjacency
from .attention import Held, Softmax, aggregate, at_edges, by_head, compute_dtype, fits, table
from .chunk import Chunk, chunks, numbers_an_entry
from .sddmm import padded


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
    sources, targets = by_head(source, dtype), by_head(target, dtype)

    def logits(chunk: Chunk) -> Tensor:
        return leaky_relu(_raw(chunk, targets, sources, edge), slope, inplace=True)

    return aggregate(adjacency, value, logits, dtype, numbers_an_entry(value.shape[1]), dropout, seed)


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
    dtype, (num_cols, heads, _), width = lse.dtype, value.shape, numbers_an_entry(value.shape[1])
    grad_value, grad_source, grad_target = (t.new_zeros(t.shape) for t in (value, source, target))
    grad_edge = value.new_empty(0) if edge is None else edge.new_zeros(edge.shape)
    if value.numel() == 0:
        return grad_value, grad_source, grad_target, grad_edge
    softmax = Softmax.of(grad, out, lse, dropout, seed)
    products = padded(table(value, dtype))
    sources, targets = by_head(source, dtype), by_head(target, dtype)
    weights = sums = None
    if fits(adjacency, 2 * heads, dtype):
        weights = Held(adjacency, transposed, (heads, adjacency.num_edges), 1, dtype)
        sums = Held(adjacency, transposed, (adjacency.num_edges, heads), 0, dtype)
    for chunk in chunks(adjacency, width, heads, num_cols):
        raw = _raw(chunk, targets, sources, edge)
        grad_weight = chunk.product(softmax.grad_by_head, products)
        weight, grad_logits = softmax.at_rows(chunk, leaky_relu(raw, slope), grad_weight)
        grad_raw = _through_leaky(grad_logits, raw, slope).t().contiguous()
        grad_target[chunk.rows] = chunk.total(grad_raw)
        if edge is not None:
            grad_edge.index_copy_(0, chunk.edge.long(), grad_raw.to(edge.dtype))
        if weights is not None and sums is not None:
            weights.put(chunk, weight)
            sums.put(chunk, grad_raw)
    grads = softmax.grad
    if sums is not None:
        grad_source.copy_(sums.total())
    else:
        products, grads = padded(by_head(value, dtype)), padded(softmax.grad)
    for chunk in chunks(transposed, width, heads, adjacency.num_rows):
        if weights is not None:
            weight = weights.at(chunk)
        else:
            raw = _raw(chunk, sources, targets, edge)
            grad_weight = chunk.product(products, grads)
            weight, grad_logits = softmax.at_cols(chunk, leaky_relu(raw, slope), grad_weight)
            grad_source[chunk.rows] = chunk.total(_through_leaky(grad_logits, raw, slope).t())
        grad_value[chunk.rows] = chunk.weighted_sum(weight, softmax.grad)
    return grad_value, grad_source, grad_target, grad_edge


def _raw(chunk: Chunk, by_row: Tensor, by_col: Tensor, edge: Tensor | None) -> Tensor:
    """``[H, e]`` logits before the LeakyReLU."""
    raw = chunk.at_rows(by_row).add_(chunk.at_cols(by_col))
    return raw if edge is None else raw.add_(at_edges(chunk, edge, raw.dtype).t())


def _through_leaky(grad: Tensor, raw: Tensor, slope: float) -> Tensor:
    """Gradient before the LeakyReLU, in the place of ``raw``."""
    return torch.ops.aten.leaky_relu_backward.grad_input(grad, raw, slope, False, grad_input=raw)
