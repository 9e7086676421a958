"""GATv2 attention on the CPU: logits are ``<att, LeakyReLU(left[j] + right[i] (+ edge))>``, values are ``left``."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from ...adjacency import Adjacency
from .attention import Chunk, Saved, aggregate, by_head, chunks, compute_dtype


def gatv2_attention(
    adjacency: Adjacency,
    left: Tensor,
    right: Tensor,
    att: Tensor,
    edge: Tensor | None,
    slope: float,
    dropout: float,
    seed: Tensor,
) -> tuple[Tensor, Tensor]:
    """Output and lse of left ``[K, H, C]``, right ``[M, H, C]``, att ``[H, C]``, edge ``[E, H, C]``."""
    dtype = compute_dtype(left, right, att, edge)
    wide_left, wide_right, wide_att = (t.detach().to(dtype) for t in (left, right, att))

    def logits(chunk: Chunk) -> Tensor:
        hidden = _hidden(chunk, wide_right, wide_left, edge)
        return leaky_relu(hidden, slope, inplace=True).mul_(wide_att).sum(-1)

    return aggregate(adjacency, left, logits, dtype, att.numel(), dropout, seed)


def gatv2_attention_backward(
    adjacency: Adjacency,
    transposed: Adjacency,
    left: Tensor,
    right: Tensor,
    att: Tensor,
    edge: Tensor | None,
    slope: float,
    dropout: float,
    seed: Tensor,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of left, right, att and edge (empty where there is no edge operand)."""
    dtype, width = lse.dtype, att.numel()
    saved = Saved.of(adjacency, grad, out, lse, dropout, seed)
    wide_left, wide_right, wide_att = (t.detach().to(dtype) for t in (left, right, att))
    lefts = by_head(left, dtype)
    grad_left, grad_right = (t.new_zeros(t.shape) for t in (left, right))
    grad_att = att.new_zeros(att.shape, dtype=dtype)
    grad_edge = left.new_empty(0) if edge is None else edge.new_empty(edge.shape)
    for chunk in chunks(adjacency, width):
        hidden = _hidden(chunk, wide_right, wide_left, edge)
        active = leaky_relu(hidden, slope)
        _, grad_logits = saved.at_rows(chunk, (active * wide_att).sum(-1), chunk.product(saved.grad, lefts))
        grad_att += active.mul_(grad_logits.unsqueeze(-1)).sum(0)
        grad_hidden = _through_leaky(grad_logits, hidden, wide_att, slope)
        grad_right[chunk.rows] = chunk.total(grad_hidden).to(right.dtype)
        if edge is not None:
            grad_edge.index_copy_(0, chunk.edge.long(), grad_hidden.to(edge.dtype))
    for chunk in chunks(transposed, width):
        hidden = _hidden(chunk, wide_left, wide_right, edge)
        weight, grad_logits = saved.at_cols(
            chunk,
            lambda: (leaky_relu(hidden, slope).mul_(wide_att).sum(-1), chunk.product(lefts, saved.grad)),  # noqa: B023
        )
        total = chunk.total(_through_leaky(grad_logits, hidden, wide_att, slope))
        grad_left[chunk.rows] = total.add_(chunk.weighted_sum(weight, saved.grad)).to(left.dtype)
    return grad_left, grad_right, grad_att.to(att.dtype), grad_edge


def _hidden(chunk: Chunk, by_row: Tensor, by_col: Tensor, edge: Tensor | None) -> Tensor:
    """``[e, H, C]`` before the LeakyReLU."""
    hidden = chunk.at_rows(by_row).add_(chunk.at_cols(by_col))
    return hidden if edge is None else hidden.add_(edge.detach().index_select(0, chunk.edge))


def _through_leaky(grad_logits: Tensor, hidden: Tensor, att: Tensor, slope: float) -> Tensor:
    """``[e, H, C]`` gradient before the LeakyReLU, in the place of ``hidden``."""
    grad = grad_logits.unsqueeze(-1) * att
    return torch.ops.aten.leaky_relu_backward.grad_input(grad, hidden, slope, False, grad_input=hidden)
