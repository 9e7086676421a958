"""GAT attention in Triton: ``softmax LeakyReLU(source[j] + target[i] (+ logit[e]))``, then ``Σ α value[j]``.

Forward keeps ``lse`` only. Backward recomputes ``α = exp(LeakyReLU(raw) − lse)`` in two passes, with ``g`` the incoming
gradient, ``m`` the dropout factor and ``d_i = <g_i, out_i>``: ``draw = α (m <g_i, value_j> − d_i) LeakyReLU'(raw)``
is summed over a row for ``target`` (and stored for ``logit``), over a column for ``source``; ``Σ_i α m g_i`` is the
gradient of ``value``.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ...adjacency import Adjacency
from .attention import (
    COUNTS,
    ITEMS,
    entries,
    features_at,
    features_of,
    features_of_row,
    head_group,
    heads_at,
    heads_of_row,
    item,
    leaky,
    leaky_grad,
    softmax_end,
    softmax_grad,
    softmax_start,
    softmax_step,
    softmax_weight,
    store,
)
from .attention_launch import Tile, Walk, tile


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=ITEMS)
def additive_forward_kernel(
    out, lse, out_part, lse_part, pieces, wide, short, num_long, num_pieces, col, edge,
    value, source, target, logit, seed, limit,
    SLOPE: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr, HEADS: tl.constexpr, FEATURES: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    row, first, count = item(pieces, wide, short, num_long, num_pieces)
    h, in_h = head_group(HEADS, BLOCK_H)
    hf, in_hf = features_of(HEADS, FEATURES, BLOCK_H, BLOCK_F)
    at_target = heads_of_row(target, row, h, in_h, HEADS, ACC)
    top, total, acc = softmax_start(BLOCK_H, BLOCK_F, ACC)
    for start in range(0, count, BLOCK_E):
        at, j, e = entries(col, edge, first, start, count, BLOCK_E)
        live = (at[:, None] < count) & in_h[None, :]
        raw = _raw(heads_at(source, j, h, live, HEADS, ACC), at_target[None, :], logit, e, h, live, HEADS, ACC)
        s = tl.where(live, leaky(raw, SLOPE), float("-inf"))
        v = features_at(value, j, hf, (at[:, None] < count) & in_hf[None, :], HEADS * FEATURES, BLOCK_H, ACC)
        top, total, acc = softmax_step(top, total, acc, s, v, seed, e, h, limit, HEADS)
    result, log_total = softmax_end(top, total, acc, KEEP)
    store(out, out_part, row, num_pieces, hf, result, in_hf, HEADS * FEATURES)
    store(lse, lse_part, row, num_pieces, h, log_total, in_h, HEADS)


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=ITEMS)
def additive_rows_kernel(
    grad_target, target_part, grad_logit, delta, pieces, wide, short, num_long, num_pieces, col, edge,
    value, source, target, logit, lse, out, grad, seed, limit,
    SLOPE: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr, HEADS: tl.constexpr, FEATURES: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Gradients of target and edge; also writes ``delta`` ``[M, H]`` for the columns (a row's pieces: all the same)."""
    row, first, count = item(pieces, wide, short, num_long, num_pieces)
    h, in_h = head_group(HEADS, BLOCK_H)
    hf, in_hf = features_of(HEADS, FEATURES, BLOCK_H, BLOCK_F)
    g = features_of_row(grad, row, hf, in_hf, HEADS * FEATURES, BLOCK_H, ACC)
    d = tl.sum(g * features_of_row(out, row, hf, in_hf, HEADS * FEATURES, BLOCK_H, ACC), 1)
    store(delta, None, row, 0, h, d, in_h, HEADS)
    at_target = heads_of_row(target, row, h, in_h, HEADS, ACC)
    at_lse = heads_of_row(lse, row, h, in_h, HEADS, ACC)
    total = tl.zeros([BLOCK_H], ACC)
    for start in range(0, count, BLOCK_E):
        at, j, e = entries(col, edge, first, start, count, BLOCK_E)
        live = (at[:, None] < count) & in_h[None, :]
        raw = _raw(heads_at(source, j, h, live, HEADS, ACC), at_target[None, :], logit, e, h, live, HEADS, ACC)
        alpha = softmax_weight(leaky(raw, SLOPE), at_lse[None, :], live)
        v = features_at(value, j, hf, (at[:, None] < count) & in_hf[None, :], HEADS * FEATURES, BLOCK_H, ACC)
        _, ds = softmax_grad(alpha, tl.sum(v * g[None, :, :], 2), d[None, :], live, seed, e, h, limit, HEADS, KEEP)
        grad_raw = leaky_grad(raw, ds, SLOPE)
        if logit is not None:
            at_edge = grad_logit + e[:, None] * HEADS + h[None, :]
            tl.store(at_edge, grad_raw.to(grad_logit.dtype.element_ty), mask=live)
        total += tl.sum(grad_raw, 0)
    store(grad_target, target_part, row, num_pieces, h, total, in_h, HEADS)


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=ITEMS)
def additive_columns_kernel(
    grad_value, grad_source, value_part, source_part, pieces, wide, short, num_long, num_pieces, col, edge,
    value, source, target, logit, lse, delta, grad, seed, limit,
    SLOPE: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr, HEADS: tl.constexpr, FEATURES: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Gradients of value and source; items, ``col`` and ``edge`` are those of the transpose."""
    row, first, count = item(pieces, wide, short, num_long, num_pieces)
    h, in_h = head_group(HEADS, BLOCK_H)
    hf, in_hf = features_of(HEADS, FEATURES, BLOCK_H, BLOCK_F)
    v = features_of_row(value, row, hf, in_hf, HEADS * FEATURES, BLOCK_H, ACC)
    at_source = heads_of_row(source, row, h, in_h, HEADS, ACC)
    total = tl.zeros([BLOCK_H], ACC)
    acc = tl.zeros([BLOCK_H, BLOCK_F], ACC)
    for start in range(0, count, BLOCK_E):
        at, i, e = entries(col, edge, first, start, count, BLOCK_E)
        live = (at[:, None] < count) & in_h[None, :]
        raw = _raw(heads_at(target, i, h, live, HEADS, ACC), at_source[None, :], logit, e, h, live, HEADS, ACC)
        alpha = softmax_weight(leaky(raw, SLOPE), heads_at(lse, i, h, live, HEADS, ACC), live)
        g = features_at(grad, i, hf, (at[:, None] < count) & in_hf[None, :], HEADS * FEATURES, BLOCK_H, ACC)
        d = heads_at(delta, i, h, live, HEADS, ACC)
        weight, ds = softmax_grad(alpha, tl.sum(g * v[None, :, :], 2), d, live, seed, e, h, limit, HEADS, KEEP)
        total += tl.sum(leaky_grad(raw, ds, SLOPE), 0)
        acc += tl.sum(weight[:, :, None] * g, 0)
    store(grad_value, value_part, row, num_pieces, hf, acc, in_hf, HEADS * FEATURES)
    store(grad_source, source_part, row, num_pieces, h, total, in_h, HEADS)


@triton.jit
def _raw(gathered, own, logit, e, h, live, HEADS: tl.constexpr, ACC: tl.constexpr):
    """``[BLOCK_E, BLOCK_H]``: what the LeakyReLU takes, from the neighbours' numbers and this row's own."""
    raw = gathered + own
    if logit is not None:
        raw += heads_at(logit, e, h, live, HEADS, ACC)
    return raw


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
    walk = Walk.of((value, source, target, edge), value, dropout, seed, SLOPE=slope)
    return walk.attend(additive_forward_kernel, _tile(value), adjacency, value)


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
    walk, size = Walk.of((value, source, target, edge), value, dropout, seed, SLOPE=slope), _tile(value)
    grad = grad.contiguous()
    grad_value, grad_source, grad_target = (t.new_empty(t.shape) for t in (value, source, target))
    grad_edge = None if edge is None else edge.new_empty(edge.shape)
    delta = lse.new_empty(lse.shape)
    stored = (grad_edge, delta)
    walk.differentiate(additive_rows_kernel, size, adjacency, (grad_target,), stored, (lse, out, grad))
    walk.differentiate(additive_columns_kernel, size, transposed, (grad_value, grad_source), (), (lse, delta, grad))
    return grad_value, grad_source, grad_target, value.new_empty(0) if grad_edge is None else grad_edge


def _tile(value: Tensor) -> Tile:
    return tile(*value.shape[1:], tiles=1)
