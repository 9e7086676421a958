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
    Dropout,
    Tile,
    accumulator,
    adjacency_of,
    compute_dtype,
    contiguous,
    edges_of,
    finish,
    keeps,
    launch,
    row_bounds,
    safe_lse,
    softmax_step,
    tile,
)
from .tile import power_of_two


@triton.jit
def dot_forward_kernel(
    out, lse, rowptr, col, edge, query, key, value, feature, seed, limit,
    SCALE: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr,
    HEADS: tl.constexpr, DEPTH: tl.constexpr, FEATURES: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    k = tl.arange(0, BLOCK_D)
    f = tl.arange(0, BLOCK_F)
    in_h = h < HEADS
    in_hk = in_h[:, None] & (k < DEPTH)[None, :]
    in_hf = in_h[:, None] & (f < FEATURES)[None, :]
    hk = h[:, None] * DEPTH + k[None, :]
    hf = h[:, None] * FEATURES + f[None, :]
    begin, end = row_bounds(rowptr, row)
    q = tl.load(query + row * (HEADS * DEPTH) + hk, mask=in_hk, other=0).to(ACC) * SCALE
    top = tl.full([BLOCK_H], float("-inf"), ACC)
    total = tl.zeros([BLOCK_H], ACC)
    acc = tl.zeros([BLOCK_H, BLOCK_F], ACC)
    for start in range(begin, end, BLOCK_E):
        entry = start + tl.arange(0, BLOCK_E)
        live = entry < end
        at_k = live[:, None, None] & in_hk[None, :, :]
        at_f = live[:, None, None] & in_hf[None, :, :]
        j = tl.load(col + entry, mask=live, other=0).to(tl.int64)
        e = edges_of(edge, entry, live)
        keys = tl.load(key + j[:, None, None] * (HEADS * DEPTH) + hk[None, :, :], mask=at_k, other=0).to(ACC)
        v = tl.load(value + j[:, None, None] * (HEADS * FEATURES) + hf[None, :, :], mask=at_f, other=0).to(ACC)
        if feature is not None:  # features and depth are equal
            extra = tl.load(feature + e[:, None, None] * (HEADS * DEPTH) + hk[None, :, :], mask=at_k, other=0).to(ACC)
            keys += extra
            v += extra
        s = tl.where(live[:, None], tl.sum(keys * q[None, :, :], 2), float("-inf"))
        top, total, term, shrink = softmax_step(s, top, total)
        if seed is not None:
            term = tl.where(keeps(seed, e, h, HEADS, limit), term, 0.0)
        acc = acc * shrink[:, None] + tl.sum(term[:, :, None] * v, 0)
    result, log_total = finish(acc, top, total, KEEP)
    tl.store(out + row * (HEADS * FEATURES) + hf, result.to(out.dtype.element_ty), mask=in_hf)
    tl.store(lse + row * HEADS + h, log_total, mask=in_h)


@triton.jit
def dot_rows_kernel(
    grad_query, grad_feature, delta, rowptr, col, edge, query, key, value, feature, seed, lse, out, grad,
    limit,
    SCALE: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr,
    HEADS: tl.constexpr, DEPTH: tl.constexpr, FEATURES: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Gradients of query and edge; also writes ``delta`` ``[M, H]`` for the columns."""
    row = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    k = tl.arange(0, BLOCK_D)
    f = tl.arange(0, BLOCK_F)
    in_h = h < HEADS
    in_hk = in_h[:, None] & (k < DEPTH)[None, :]
    in_hf = in_h[:, None] & (f < FEATURES)[None, :]
    hk = h[:, None] * DEPTH + k[None, :]
    hf = h[:, None] * FEATURES + f[None, :]
    begin, end = row_bounds(rowptr, row)
    g = tl.load(grad + row * (HEADS * FEATURES) + hf, mask=in_hf, other=0).to(ACC)
    o = tl.load(out + row * (HEADS * FEATURES) + hf, mask=in_hf, other=0).to(ACC)
    d = tl.sum(g * o, 1)
    tl.store(delta + row * HEADS + h, d, mask=in_h)
    q = tl.load(query + row * (HEADS * DEPTH) + hk, mask=in_hk, other=0).to(ACC) * SCALE
    at_lse = safe_lse(tl.load(lse + row * HEADS + h, mask=in_h, other=0))
    acc = tl.zeros([BLOCK_H, BLOCK_D], ACC)
    for start in range(begin, end, BLOCK_E):
        entry = start + tl.arange(0, BLOCK_E)
        live = entry < end
        at_k = live[:, None, None] & in_hk[None, :, :]
        at_f = live[:, None, None] & in_hf[None, :, :]
        j = tl.load(col + entry, mask=live, other=0).to(tl.int64)
        e = edges_of(edge, entry, live)
        keys = tl.load(key + j[:, None, None] * (HEADS * DEPTH) + hk[None, :, :], mask=at_k, other=0).to(ACC)
        v = tl.load(value + j[:, None, None] * (HEADS * FEATURES) + hf[None, :, :], mask=at_f, other=0).to(ACC)
        at_feature = e[:, None, None] * (HEADS * DEPTH) + hk[None, :, :]
        if feature is not None:
            extra = tl.load(feature + at_feature, mask=at_k, other=0).to(ACC)
            keys += extra
            v += extra
        alpha = tl.exp(tl.sum(keys * q[None, :, :], 2) - at_lse[None, :])
        alpha = tl.where(live[:, None] & in_h[None, :], alpha, 0.0)
        grad_alpha = tl.sum(v * g[None, :, :], 2)
        weight = alpha
        if seed is not None:
            keep = keeps(seed, e, h, HEADS, limit)
            grad_alpha = tl.where(keep, grad_alpha * KEEP, 0.0)
            weight = tl.where(keep, alpha * KEEP, 0.0)
        ds = alpha * (grad_alpha - d[None, :])
        if feature is not None:
            share = ds[:, :, None] * q[None, :, :] + weight[:, :, None] * g[None, :, :]
            tl.store(grad_feature + at_feature, share.to(grad_feature.dtype.element_ty), mask=at_k)
        acc += tl.sum(ds[:, :, None] * keys, 0)
    tl.store(grad_query + row * (HEADS * DEPTH) + hk, (acc * SCALE).to(grad_query.dtype.element_ty), mask=in_hk)


@triton.jit
def dot_columns_kernel(
    grad_key, grad_value, rowptr, col, edge, query, key, value, feature, seed, lse, delta, grad,
    limit,
    SCALE: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr,
    HEADS: tl.constexpr, DEPTH: tl.constexpr, FEATURES: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Gradients of key and value; ``rowptr``, ``col``, ``edge`` are those of the transpose."""
    row = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    k = tl.arange(0, BLOCK_D)
    f = tl.arange(0, BLOCK_F)
    in_h = h < HEADS
    in_hk = in_h[:, None] & (k < DEPTH)[None, :]
    in_hf = in_h[:, None] & (f < FEATURES)[None, :]
    hk = h[:, None] * DEPTH + k[None, :]
    hf = h[:, None] * FEATURES + f[None, :]
    begin, end = row_bounds(rowptr, row)
    own_key = tl.load(key + row * (HEADS * DEPTH) + hk, mask=in_hk, other=0).to(ACC)
    own_value = tl.load(value + row * (HEADS * FEATURES) + hf, mask=in_hf, other=0).to(ACC)
    acc_key = tl.zeros([BLOCK_H, BLOCK_D], ACC)
    acc_value = tl.zeros([BLOCK_H, BLOCK_F], ACC)
    for start in range(begin, end, BLOCK_E):
        entry = start + tl.arange(0, BLOCK_E)
        live = entry < end
        at_h = live[:, None] & in_h[None, :]
        at_k = live[:, None, None] & in_hk[None, :, :]
        at_f = live[:, None, None] & in_hf[None, :, :]
        i = tl.load(col + entry, mask=live, other=0).to(tl.int64)
        e = edges_of(edge, entry, live)
        ih = i[:, None] * HEADS + h[None, :]
        q = tl.load(query + i[:, None, None] * (HEADS * DEPTH) + hk[None, :, :], mask=at_k, other=0).to(ACC) * SCALE
        g = tl.load(grad + i[:, None, None] * (HEADS * FEATURES) + hf[None, :, :], mask=at_f, other=0).to(ACC)
        s = tl.sum(q * own_key[None, :, :], 2)
        grad_alpha = tl.sum(g * own_value[None, :, :], 2)
        if feature is not None:
            extra = tl.load(feature + e[:, None, None] * (HEADS * DEPTH) + hk[None, :, :], mask=at_k, other=0).to(ACC)
            s += tl.sum(q * extra, 2)
            grad_alpha += tl.sum(g * extra, 2)
        alpha = tl.where(at_h, tl.exp(s - safe_lse(tl.load(lse + ih, mask=at_h, other=0))), 0.0)
        weight = alpha
        if seed is not None:
            keep = keeps(seed, e, h, HEADS, limit)
            grad_alpha = tl.where(keep, grad_alpha * KEEP, 0.0)
            weight = tl.where(keep, alpha * KEEP, 0.0)
        ds = alpha * (grad_alpha - tl.load(delta + ih, mask=at_h, other=0))
        acc_key += tl.sum(ds[:, :, None] * q, 0)
        acc_value += tl.sum(weight[:, :, None] * g, 0)
    tl.store(grad_key + row * (HEADS * DEPTH) + hk, acc_key.to(grad_key.dtype.element_ty), mask=in_hk)
    tl.store(grad_value + row * (HEADS * FEATURES) + hf, acc_value.to(grad_value.dtype.element_ty), mask=in_hf)


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
    (_, heads, depth), features, rows = key.shape, value.shape[2], adjacency.num_rows
    out = value.new_empty(rows, heads, features)
    lse = value.new_empty(rows, heads, dtype=compute_dtype(query, key, value, edge))
    drop = Dropout.of(dropout, seed)
    launch(
        dot_forward_kernel, rows, heads, _tile(heads, depth, features),
        (out, lse, *adjacency_of(adjacency), *contiguous(query, key, value, edge), drop.seed),
        drop.limit, SCALE=scale, KEEP=drop.keep, ACC=accumulator(lse), BLOCK_D=power_of_two(depth),
        HEADS=heads, DEPTH=depth, FEATURES=features,
    )  # fmt: skip
    return out, lse


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
    (_, heads, depth), features = key.shape, value.shape[2]
    drop, size = Dropout.of(dropout, seed), _tile(heads, depth, features)
    operands = (*contiguous(query, key, value, edge), drop.seed)
    grad = grad.contiguous()
    grad_query, grad_key, grad_value = (t.new_empty(t.shape) for t in (query, key, value))
    grad_edge = None if edge is None else edge.new_empty(edge.shape)
    delta = lse.new_empty(lse.shape)
    constants = {
        "SCALE": scale, "KEEP": drop.keep, "ACC": accumulator(lse), "BLOCK_D": power_of_two(depth),
        "HEADS": heads, "DEPTH": depth, "FEATURES": features,
    }  # fmt: skip
    launch(
        dot_rows_kernel, adjacency.num_rows, heads, size,
        (grad_query, grad_edge, delta, *adjacency_of(adjacency), *operands, lse, out, grad), drop.limit, **constants,
    )  # fmt: skip
    launch(
        dot_columns_kernel, transposed.num_rows, heads, size,
        (grad_key, grad_value, *adjacency_of(transposed), *operands, lse, delta, grad), drop.limit, **constants,
    )  # fmt: skip
    return grad_query, grad_key, grad_value, value.new_empty(0) if grad_edge is None else grad_edge


def _tile(heads: int, depth: int, features: int) -> Tile:
    return replace(tile(heads, max(depth, features), 2), features=power_of_two(features))
