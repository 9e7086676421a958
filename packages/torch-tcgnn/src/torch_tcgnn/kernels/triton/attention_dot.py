"""Dot-product attention in Triton: ``softmax scale · <query[i], key[j] (+ edge)>``, then ``Σ α (value[j] (+ edge))``.

Backward, with ``g`` the incoming gradient, ``m`` the dropout factor and ``d_i = <g_i, out_i>``:
``ds = scale · α (m <g_i, value_j + edge_e> − d_i)``. Rows sum ``ds (key_j + edge_e)`` for ``query`` and store
``ds query_i + α m g_i`` for ``edge``; columns sum ``ds query_i`` for ``key`` and ``α m g_i`` for ``value``.
"""

from __future__ import annotations

from dataclasses import replace

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
    softmax_end,
    softmax_grad,
    softmax_start,
    softmax_step,
    softmax_weight,
    store,
    store_features_at,
)
from .attention_launch import Tile, Walk, tile
from .tile import power_of_two


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=ITEMS)
def dot_forward_kernel(
    out, lse, out_part, lse_part, pieces, wide, short, num_long, num_pieces, col, edge,
    query, key, value, feature, seed, limit,
    SCALE: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr, HEADS: tl.constexpr, DEPTH: tl.constexpr,
    FEATURES: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    row, first, count = item(pieces, wide, short, num_long, num_pieces)
    h, in_h = head_group(HEADS, BLOCK_H)
    hk, in_hk = features_of(HEADS, DEPTH, BLOCK_H, BLOCK_D)
    hf, in_hf = features_of(HEADS, FEATURES, BLOCK_H, BLOCK_F)
    q = features_of_row(query, row, hk, in_hk, HEADS * DEPTH, BLOCK_H, ACC) * SCALE
    top, total, acc = softmax_start(BLOCK_H, BLOCK_F, ACC)
    for start in range(0, count, BLOCK_E):
        at, j, e = entries(col, edge, first, start, count, BLOCK_E)
        live_k = (at[:, None] < count) & in_hk[None, :]
        live_f = (at[:, None] < count) & in_hf[None, :]
        k = features_at(key, j, hk, live_k, HEADS * DEPTH, BLOCK_H, ACC)
        v = features_at(value, j, hf, live_f, HEADS * FEATURES, BLOCK_H, ACC)
        if feature is not None:  # features and depth are equal
            extra = features_at(feature, e, hk, live_k, HEADS * DEPTH, BLOCK_H, ACC)
            k += extra
            v += extra
        s = tl.where(at[:, None] < count, tl.sum(k * q[None, :, :], 2), float("-inf"))
        top, total, acc = softmax_step(top, total, acc, s, v, seed, e, h, limit, HEADS)
    result, log_total = softmax_end(top, total, acc, KEEP)
    store(out, out_part, row, num_pieces, hf, result, in_hf, HEADS * FEATURES)
    store(lse, lse_part, row, num_pieces, h, log_total, in_h, HEADS)


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=ITEMS)
def dot_rows_kernel(
    grad_query, query_part, grad_feature, delta, pieces, wide, short, num_long, num_pieces, col, edge,
    query, key, value, feature, lse, out, grad, seed, limit,
    SCALE: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr, HEADS: tl.constexpr, DEPTH: tl.constexpr,
    FEATURES: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Gradients of query and edge; also writes ``delta`` ``[M, H]`` for the columns (a row's pieces: all the same)."""
    row, first, count = item(pieces, wide, short, num_long, num_pieces)
    h, in_h = head_group(HEADS, BLOCK_H)
    hk, in_hk = features_of(HEADS, DEPTH, BLOCK_H, BLOCK_D)
    hf, in_hf = features_of(HEADS, FEATURES, BLOCK_H, BLOCK_F)
    g = features_of_row(grad, row, hf, in_hf, HEADS * FEATURES, BLOCK_H, ACC)
    d = tl.sum(g * features_of_row(out, row, hf, in_hf, HEADS * FEATURES, BLOCK_H, ACC), 1)
    store(delta, None, row, 0, h, d, in_h, HEADS)
    q = features_of_row(query, row, hk, in_hk, HEADS * DEPTH, BLOCK_H, ACC) * SCALE
    at_lse = heads_of_row(lse, row, h, in_h, HEADS, ACC)
    acc = tl.zeros([BLOCK_H, BLOCK_D], ACC)
    for start in range(0, count, BLOCK_E):
        at, j, e = entries(col, edge, first, start, count, BLOCK_E)
        live = (at[:, None] < count) & in_h[None, :]
        live_k = (at[:, None] < count) & in_hk[None, :]
        live_f = (at[:, None] < count) & in_hf[None, :]
        k = features_at(key, j, hk, live_k, HEADS * DEPTH, BLOCK_H, ACC)
        v = features_at(value, j, hf, live_f, HEADS * FEATURES, BLOCK_H, ACC)
        if feature is not None:
            extra = features_at(feature, e, hk, live_k, HEADS * DEPTH, BLOCK_H, ACC)
            k += extra
            v += extra
        alpha = softmax_weight(tl.sum(k * q[None, :, :], 2), at_lse[None, :], live)
        grad_alpha = tl.sum(v * g[None, :, :], 2)
        weight, ds = softmax_grad(alpha, grad_alpha, d[None, :], live, seed, e, h, limit, HEADS, KEEP)
        if feature is not None:
            share = ds[:, :, None] * q[None, :, :] + weight[:, :, None] * g[None, :, :]
            store_features_at(grad_feature, e, hk, share, live_k, HEADS * DEPTH)
        acc += tl.sum(ds[:, :, None] * k, 0)
    store(grad_query, query_part, row, num_pieces, hk, acc * SCALE, in_hk, HEADS * DEPTH)


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=ITEMS)
def dot_columns_kernel(
    grad_key, grad_value, key_part, value_part, pieces, wide, short, num_long, num_pieces, col, edge,
    query, key, value, feature, lse, delta, grad, seed, limit,
    SCALE: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr, HEADS: tl.constexpr, DEPTH: tl.constexpr,
    FEATURES: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Gradients of key and value; items, ``col`` and ``edge`` are those of the transpose."""
    row, first, count = item(pieces, wide, short, num_long, num_pieces)
    h, in_h = head_group(HEADS, BLOCK_H)
    hk, in_hk = features_of(HEADS, DEPTH, BLOCK_H, BLOCK_D)
    hf, in_hf = features_of(HEADS, FEATURES, BLOCK_H, BLOCK_F)
    own_key = features_of_row(key, row, hk, in_hk, HEADS * DEPTH, BLOCK_H, ACC)
    own_value = features_of_row(value, row, hf, in_hf, HEADS * FEATURES, BLOCK_H, ACC)
    acc_key = tl.zeros([BLOCK_H, BLOCK_D], ACC)
    acc_value = tl.zeros([BLOCK_H, BLOCK_F], ACC)
    for start in range(0, count, BLOCK_E):
        at, i, e = entries(col, edge, first, start, count, BLOCK_E)
        live = (at[:, None] < count) & in_h[None, :]
        live_k = (at[:, None] < count) & in_hk[None, :]
        live_f = (at[:, None] < count) & in_hf[None, :]
        q = features_at(query, i, hk, live_k, HEADS * DEPTH, BLOCK_H, ACC) * SCALE
        g = features_at(grad, i, hf, live_f, HEADS * FEATURES, BLOCK_H, ACC)
        s = tl.sum(q * own_key[None, :, :], 2)
        grad_alpha = tl.sum(g * own_value[None, :, :], 2)
        if feature is not None:
            extra = features_at(feature, e, hk, live_k, HEADS * DEPTH, BLOCK_H, ACC)
            s += tl.sum(q * extra, 2)
            grad_alpha += tl.sum(g * extra, 2)
        alpha = softmax_weight(s, heads_at(lse, i, h, live, HEADS, ACC), live)
        d = heads_at(delta, i, h, live, HEADS, ACC)
        weight, ds = softmax_grad(alpha, grad_alpha, d, live, seed, e, h, limit, HEADS, KEEP)
        acc_key += tl.sum(ds[:, :, None] * q, 0)
        acc_value += tl.sum(weight[:, :, None] * g, 0)
    store(grad_key, key_part, row, num_pieces, hk, acc_key, in_hk, HEADS * DEPTH)
    store(grad_value, value_part, row, num_pieces, hf, acc_value, in_hf, HEADS * FEATURES)


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
    walk, size = _walk(query, key, value, edge, scale, dropout, seed)
    return walk.attend(dot_forward_kernel, size, adjacency, value)


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
    walk, size = _walk(query, key, value, edge, scale, dropout, seed)
    grad = grad.contiguous()
    grad_query, grad_key, grad_value = (t.new_empty(t.shape) for t in (query, key, value))
    grad_edge = None if edge is None else edge.new_empty(edge.shape)
    delta = lse.new_empty(lse.shape)
    walk.differentiate(dot_rows_kernel, size, adjacency, (grad_query,), (grad_edge, delta), (lse, out, grad))
    walk.differentiate(dot_columns_kernel, size, transposed, (grad_key, grad_value), (), (lse, delta, grad))
    return grad_query, grad_key, grad_value, value.new_empty(0) if grad_edge is None else grad_edge


def _walk(
    query: Tensor, key: Tensor, value: Tensor, edge: Tensor | None, scale: float, dropout: float, seed: Tensor
) -> tuple[Walk, Tile]:
    (heads, depth), features = key.shape[1:], value.shape[2]
    constants = {"SCALE": scale, "DEPTH": depth, "BLOCK_D": power_of_two(depth)}
    walk = Walk.of((query, key, value, edge), value, dropout, seed, **constants)
    return walk, replace(tile(heads, max(depth, features), 2), features=power_of_two(features))
