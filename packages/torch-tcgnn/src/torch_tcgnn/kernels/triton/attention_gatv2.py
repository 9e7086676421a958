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
    Dropout,
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


@triton.jit
def gatv2_forward_kernel(
    out, lse, rowptr, col, edge, left, right, att, feature, seed, limit,
    SLOPE: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr,
    HEADS: tl.constexpr, FEATURES: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    f = tl.arange(0, BLOCK_F)
    width: tl.constexpr = HEADS * FEATURES
    in_h = h < HEADS
    in_hf = in_h[:, None] & (f < FEATURES)[None, :]
    hf = h[:, None] * FEATURES + f[None, :]
    begin, end = row_bounds(rowptr, row)
    a = tl.load(att + hf, mask=in_hf, other=0).to(ACC)
    at_target = tl.load(right + row * width + hf, mask=in_hf, other=0).to(ACC)
    top = tl.full([BLOCK_H], float("-inf"), ACC)
    total = tl.zeros([BLOCK_H], ACC)
    acc = tl.zeros([BLOCK_H, BLOCK_F], ACC)
    for start in range(begin, end, BLOCK_E):
        entry = start + tl.arange(0, BLOCK_E)
        live = entry < end
        at = live[:, None, None] & in_hf[None, :, :]
        j = tl.load(col + entry, mask=live, other=0).to(tl.int64)
        e = edges_of(edge, entry, live)
        v = tl.load(left + j[:, None, None] * width + hf[None, :, :], mask=at, other=0).to(ACC)
        z = v + at_target[None, :, :]
        if feature is not None:
            z += tl.load(feature + e[:, None, None] * width + hf[None, :, :], mask=at, other=0).to(ACC)
        s = tl.sum(tl.where(z > 0, z, z * SLOPE) * a[None, :, :], 2)
        s = tl.where(live[:, None], s, float("-inf"))
        top, total, term, shrink = softmax_step(s, top, total)
        if seed is not None:
            term = tl.where(keeps(seed, e, h, HEADS, limit), term, 0.0)
        acc = acc * shrink[:, None] + tl.sum(term[:, :, None] * v, 0)
    result, log_total = finish(acc, top, total, KEEP)
    tl.store(out + row * width + hf, result.to(out.dtype.element_ty), mask=in_hf)
    tl.store(lse + row * HEADS + h, log_total, mask=in_h)


@triton.jit
def gatv2_rows_kernel(
    grad_right, grad_feature, grad_att, delta, rowptr, col, edge, left, right, att, feature, seed, lse, out, grad,
    limit,
    SLOPE: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr,
    HEADS: tl.constexpr, FEATURES: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Gradients of right and edge, and each row's part of att's; also writes ``delta`` ``[M, H]`` for the columns."""
    row = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    f = tl.arange(0, BLOCK_F)
    width: tl.constexpr = HEADS * FEATURES
    in_h = h < HEADS
    in_hf = in_h[:, None] & (f < FEATURES)[None, :]
    hf = h[:, None] * FEATURES + f[None, :]
    begin, end = row_bounds(rowptr, row)
    g = tl.load(grad + row * width + hf, mask=in_hf, other=0).to(ACC)
    o = tl.load(out + row * width + hf, mask=in_hf, other=0).to(ACC)
    d = tl.sum(g * o, 1)
    tl.store(delta + row * HEADS + h, d, mask=in_h)
    a = tl.load(att + hf, mask=in_hf, other=0).to(ACC)
    at_target = tl.load(right + row * width + hf, mask=in_hf, other=0).to(ACC)
    at_lse = safe_lse(tl.load(lse + row * HEADS + h, mask=in_h, other=0))
    total = tl.zeros([BLOCK_H, BLOCK_F], ACC)
    total_att = tl.zeros([BLOCK_H, BLOCK_F], ACC)
    for start in range(begin, end, BLOCK_E):
        entry = start + tl.arange(0, BLOCK_E)
        live = entry < end
        at = live[:, None, None] & in_hf[None, :, :]
        j = tl.load(col + entry, mask=live, other=0).to(tl.int64)
        e = edges_of(edge, entry, live)
        v = tl.load(left + j[:, None, None] * width + hf[None, :, :], mask=at, other=0).to(ACC)
        z = v + at_target[None, :, :]
        at_feature = e[:, None, None] * width + hf[None, :, :]
        if feature is not None:
            z += tl.load(feature + at_feature, mask=at, other=0).to(ACC)
        active = tl.where(z > 0, z, z * SLOPE)
        alpha = tl.exp(tl.sum(active * a[None, :, :], 2) - at_lse[None, :])
        grad_alpha = tl.sum(v * g[None, :, :], 2)
        if seed is not None:
            grad_alpha = tl.where(keeps(seed, e, h, HEADS, limit), grad_alpha * KEEP, 0.0)
        ds = tl.where(live[:, None] & in_h[None, :], alpha * (grad_alpha - d[None, :]), 0.0)
        dz = ds[:, :, None] * tl.where(z > 0, a[None, :, :], a[None, :, :] * SLOPE)
        if feature is not None:
            tl.store(grad_feature + at_feature, dz.to(grad_feature.dtype.element_ty), mask=at)
        total += tl.sum(dz, 0)
        total_att += tl.sum(ds[:, :, None] * active, 0)
    tl.store(grad_right + row * width + hf, total.to(grad_right.dtype.element_ty), mask=in_hf)
    tl.store(grad_att + row * width + hf, total_att, mask=in_hf)


@triton.jit
def gatv2_columns_kernel(
    grad_left, rowptr, col, edge, left, right, att, feature, seed, lse, delta, grad, limit,
    SLOPE: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr,
    HEADS: tl.constexpr, FEATURES: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Gradient of left; ``rowptr``, ``col``, ``edge`` are those of the transpose."""
    row = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    f = tl.arange(0, BLOCK_F)
    width: tl.constexpr = HEADS * FEATURES
    in_h = h < HEADS
    in_hf = in_h[:, None] & (f < FEATURES)[None, :]
    hf = h[:, None] * FEATURES + f[None, :]
    begin, end = row_bounds(rowptr, row)
    a = tl.load(att + hf, mask=in_hf, other=0).to(ACC)
    v = tl.load(left + row * width + hf, mask=in_hf, other=0).to(ACC)
    acc = tl.zeros([BLOCK_H, BLOCK_F], ACC)
    for start in range(begin, end, BLOCK_E):
        entry = start + tl.arange(0, BLOCK_E)
        live = entry < end
        at_h = live[:, None] & in_h[None, :]
        at = live[:, None, None] & in_hf[None, :, :]
        i = tl.load(col + entry, mask=live, other=0).to(tl.int64)
        e = edges_of(edge, entry, live)
        ih = i[:, None] * HEADS + h[None, :]
        ihf = i[:, None, None] * width + hf[None, :, :]
        z = tl.load(right + ihf, mask=at, other=0).to(ACC) + v[None, :, :]
        if feature is not None:
            z += tl.load(feature + e[:, None, None] * width + hf[None, :, :], mask=at, other=0).to(ACC)
        s = tl.sum(tl.where(z > 0, z, z * SLOPE) * a[None, :, :], 2)
        alpha = tl.where(at_h, tl.exp(s - safe_lse(tl.load(lse + ih, mask=at_h, other=0))), 0.0)
        g = tl.load(grad + ihf, mask=at, other=0).to(ACC)
        grad_alpha = tl.sum(g * v[None, :, :], 2)
        weight = alpha
        if seed is not None:
            keep = keeps(seed, e, h, HEADS, limit)
            grad_alpha = tl.where(keep, grad_alpha * KEEP, 0.0)
            weight = tl.where(keep, alpha * KEEP, 0.0)
        ds = alpha * (grad_alpha - tl.load(delta + ih, mask=at_h, other=0))
        dz = ds[:, :, None] * tl.where(z > 0, a[None, :, :], a[None, :, :] * SLOPE)
        acc += tl.sum(dz + weight[:, :, None] * g, 0)
    tl.store(grad_left + row * width + hf, acc.to(grad_left.dtype.element_ty), mask=in_hf)


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
    heads, features = att.shape
    rows = adjacency.num_rows
    out = left.new_empty(rows, heads, features)
    lse = left.new_empty(rows, heads, dtype=compute_dtype(left, right, att, edge))
    drop = Dropout.of(dropout, seed)
    launch(
        gatv2_forward_kernel, rows, heads, tile(heads, features, 1),
        (out, lse, *adjacency_of(adjacency), *contiguous(left, right, att, edge), drop.seed),
        drop.limit, SLOPE=slope, KEEP=drop.keep, ACC=accumulator(lse), HEADS=heads, FEATURES=features,
    )  # fmt: skip
    return out, lse


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
    heads, features = att.shape
    drop, size = Dropout.of(dropout, seed), tile(heads, features, 2)
    operands = (*contiguous(left, right, att, edge), drop.seed)
    grad = grad.contiguous()
    grad_left, grad_right = (t.new_empty(t.shape) for t in (left, right))
    grad_edge = None if edge is None else edge.new_empty(edge.shape)
    grad_att = lse.new_empty(adjacency.num_rows, heads, features)
    delta = lse.new_empty(lse.shape)
    constants = {"SLOPE": slope, "KEEP": drop.keep, "ACC": accumulator(lse), "HEADS": heads, "FEATURES": features}
    launch(
        gatv2_rows_kernel, adjacency.num_rows, heads, size,
        (grad_right, grad_edge, grad_att, delta, *adjacency_of(adjacency), *operands, lse, out, grad),
        drop.limit, **constants,
    )  # fmt: skip
    launch(
        gatv2_columns_kernel, transposed.num_rows, heads, size,
        (grad_left, *adjacency_of(transposed), *operands, lse, delta, grad), drop.limit, **constants,
    )  # fmt: skip
    grad_edge = left.new_empty(0) if grad_edge is None else grad_edge
    return grad_left, grad_right, grad_att.sum(0).to(att.dtype), grad_edge
