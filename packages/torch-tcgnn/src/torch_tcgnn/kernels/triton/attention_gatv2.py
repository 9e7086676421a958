"""GATv2 attention in Triton: ``softmax <att, LeakyReLU(left[j] + right[i] (+ edge[e]))>``, then ``Σ α left[j]``.

Backward, with ``z`` the argument of the LeakyReLU, ``g`` the incoming gradient, ``m`` the dropout factor and
``d_i = <g_i, out_i>``: ``ds = α (m <g_i, left_j> − d_i)``, ``dz = ds · att · LeakyReLU'(z)``. Rows sum ``dz`` for
``right``, store it for ``edge`` and sum ``ds · LeakyReLU(z)`` for ``att``; columns sum ``dz + α m g_i`` for ``left``.
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
    store_features_at,
)
from .attention_launch import Walk, tile
from .lanes import lists, num_programs
from .plans import plan_of


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=ITEMS)
def gatv2_forward_kernel(
    out, lse, out_part, lse_part, pieces, wide, short, num_long, num_pieces, col, edge,
    left, right, att, feature, seed, limit,
    SLOPE: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr, HEADS: tl.constexpr, FEATURES: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    width: tl.constexpr = HEADS * FEATURES
    row, first, count = item(pieces, wide, short, num_long, num_pieces)
    h, in_h = head_group(HEADS, BLOCK_H)
    hf, in_hf = features_of(HEADS, FEATURES, BLOCK_H, BLOCK_F)
    a = features_of_row(att, 0, hf, in_hf, width, BLOCK_H, ACC)
    at_target = features_of_row(right, row, hf, in_hf, width, BLOCK_H, ACC)
    top, total, acc = softmax_start(BLOCK_H, BLOCK_F, ACC)
    for start in range(0, count, BLOCK_E):
        at, j, e = entries(col, edge, first, start, count, BLOCK_E)
        live = (at[:, None] < count) & in_hf[None, :]
        v = features_at(left, j, hf, live, width, BLOCK_H, ACC)
        z = _z(v, at_target[None, :, :], feature, e, hf, live, width, BLOCK_H, ACC)
        s = tl.where(at[:, None] < count, tl.sum(leaky(z, SLOPE) * a[None, :, :], 2), float("-inf"))
        top, total, acc = softmax_step(top, total, acc, s, v, seed, e, h, limit, HEADS)
    result, log_total = softmax_end(top, total, acc, KEEP)
    store(out, out_part, row, num_pieces, hf, result, in_hf, width)
    store(lse, lse_part, row, num_pieces, h, log_total, in_h, HEADS)


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=ITEMS)
def gatv2_rows_kernel(
    grad_right, right_part, grad_feature, delta, att_part, pieces, wide, short, num_long, num_pieces, col, edge,
    left, right, att, feature, lse, out, grad, seed, limit,
    SLOPE: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr, HEADS: tl.constexpr, FEATURES: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Gradients of right and edge, and each item's part of att's; also writes ``delta`` ``[M, H]`` for the columns
    (a row's pieces: all the same)."""
    width: tl.constexpr = HEADS * FEATURES
    row, first, count = item(pieces, wide, short, num_long, num_pieces)
    h, in_h = head_group(HEADS, BLOCK_H)
    hf, in_hf = features_of(HEADS, FEATURES, BLOCK_H, BLOCK_F)
    g = features_of_row(grad, row, hf, in_hf, width, BLOCK_H, ACC)
    d = tl.sum(g * features_of_row(out, row, hf, in_hf, width, BLOCK_H, ACC), 1)
    store(delta, None, row, 0, h, d, in_h, HEADS)
    a = features_of_row(att, 0, hf, in_hf, width, BLOCK_H, ACC)
    at_target = features_of_row(right, row, hf, in_hf, width, BLOCK_H, ACC)
    at_lse = heads_of_row(lse, row, h, in_h, HEADS, ACC)
    total = tl.zeros([BLOCK_H, BLOCK_F], ACC)
    total_att = tl.zeros([BLOCK_H, BLOCK_F], ACC)
    for start in range(0, count, BLOCK_E):
        at, j, e = entries(col, edge, first, start, count, BLOCK_E)
        live_h = (at[:, None] < count) & in_h[None, :]
        live = (at[:, None] < count) & in_hf[None, :]
        v = features_at(left, j, hf, live, width, BLOCK_H, ACC)
        z = _z(v, at_target[None, :, :], feature, e, hf, live, width, BLOCK_H, ACC)
        active = leaky(z, SLOPE)
        alpha = softmax_weight(tl.sum(active * a[None, :, :], 2), at_lse[None, :], live_h)
        grad_alpha = tl.sum(v * g[None, :, :], 2)
        _, ds = softmax_grad(alpha, grad_alpha, d[None, :], live_h, seed, e, h, limit, HEADS, KEEP)
        dz = leaky_grad(z, ds[:, :, None] * a[None, :, :], SLOPE)
        if feature is not None:
            store_features_at(grad_feature, e, hf, dz, live, width)
        total += tl.sum(dz, 0)
        total_att += tl.sum(ds[:, :, None] * active, 0)
    store(grad_right, right_part, row, num_pieces, hf, total, in_hf, width)
    store(att_part, None, tl.program_id(0).to(tl.int64), 0, hf, total_att, in_hf, width)


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=ITEMS)
def gatv2_columns_kernel(
    grad_left, left_part, pieces, wide, short, num_long, num_pieces, col, edge,
    left, right, att, feature, lse, delta, grad, seed, limit,
    SLOPE: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr, HEADS: tl.constexpr, FEATURES: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Gradient of left; items, ``col`` and ``edge`` are those of the transpose."""
    width: tl.constexpr = HEADS * FEATURES
    row, first, count = item(pieces, wide, short, num_long, num_pieces)
    h, in_h = head_group(HEADS, BLOCK_H)
    hf, in_hf = features_of(HEADS, FEATURES, BLOCK_H, BLOCK_F)
    a = features_of_row(att, 0, hf, in_hf, width, BLOCK_H, ACC)
    v = features_of_row(left, row, hf, in_hf, width, BLOCK_H, ACC)
    acc = tl.zeros([BLOCK_H, BLOCK_F], ACC)
    for start in range(0, count, BLOCK_E):
        at, i, e = entries(col, edge, first, start, count, BLOCK_E)
        live_h = (at[:, None] < count) & in_h[None, :]
        live = (at[:, None] < count) & in_hf[None, :]
        at_target = features_at(right, i, hf, live, width, BLOCK_H, ACC)
        z = _z(at_target, v[None, :, :], feature, e, hf, live, width, BLOCK_H, ACC)
        s = tl.sum(leaky(z, SLOPE) * a[None, :, :], 2)
        alpha = softmax_weight(s, heads_at(lse, i, h, live_h, HEADS, ACC), live_h)
        g = features_at(grad, i, hf, live, width, BLOCK_H, ACC)
        d = heads_at(delta, i, h, live_h, HEADS, ACC)
        weight, ds = softmax_grad(alpha, tl.sum(g * v[None, :, :], 2), d, live_h, seed, e, h, limit, HEADS, KEEP)
        dz = leaky_grad(z, ds[:, :, None] * a[None, :, :], SLOPE)
        acc += tl.sum(dz + weight[:, :, None] * g, 0)
    store(grad_left, left_part, row, num_pieces, hf, acc, in_hf, width)


@triton.jit
def _z(gathered, own, feature, e, hf, live, WIDTH: tl.constexpr, BLOCK_H: tl.constexpr, ACC: tl.constexpr):
    """``[BLOCK_E, BLOCK_H, BLOCK_F]``: what the LeakyReLU takes, from the neighbours' features and this row's own."""
    z = gathered + own
    if feature is not None:
        z += features_at(feature, e, hf, live, WIDTH, BLOCK_H, ACC)
    return z


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
    walk = Walk.of((left, right, att, edge), left, dropout, seed, SLOPE=slope)
    return walk.attend(gatv2_forward_kernel, tile(*att.shape, tiles=1), adjacency, left)


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
    walk, size = Walk.of((left, right, att, edge), left, dropout, seed, SLOPE=slope), tile(*att.shape, tiles=2)
    grad = grad.contiguous()
    grad_left, grad_right = (t.new_empty(t.shape) for t in (left, right))
    grad_edge = None if edge is None else edge.new_empty(edge.shape)
    delta = lse.new_empty(lse.shape)
    att_parts = lse.new_empty(num_programs(lists(plan_of(adjacency)), 1), *att.shape)
    stored = (grad_edge, delta, att_parts)
    walk.differentiate(gatv2_rows_kernel, size, adjacency, (grad_right,), stored, (lse, out, grad))
    walk.differentiate(gatv2_columns_kernel, size, transposed, (grad_left,), (), (lse, delta, grad))
    grad_edge = left.new_empty(0) if grad_edge is None else grad_edge
    return grad_left, grad_right, att_parts.sum(0).to(att.dtype), grad_edge
