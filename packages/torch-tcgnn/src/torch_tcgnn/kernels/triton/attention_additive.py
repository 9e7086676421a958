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
def additive_forward_kernel(
    out, lse, rowptr, col, edge, value, source, target, logit, seed, limit,
    SLOPE: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr,
    HEADS: tl.constexpr, FEATURES: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    f = tl.arange(0, BLOCK_F)
    in_h = h < HEADS
    in_hf = in_h[:, None] & (f < FEATURES)[None, :]
    hf = h[:, None] * FEATURES + f[None, :]
    begin, end = row_bounds(rowptr, row)
    at_target = tl.load(target + row * HEADS + h, mask=in_h, other=0).to(ACC)
    top = tl.full([BLOCK_H], float("-inf"), ACC)
    total = tl.zeros([BLOCK_H], ACC)
    acc = tl.zeros([BLOCK_H, BLOCK_F], ACC)
    for start in range(begin, end, BLOCK_E):
        entry = start + tl.arange(0, BLOCK_E)
        live = entry < end
        at = live[:, None] & in_h[None, :]
        j = tl.load(col + entry, mask=live, other=0).to(tl.int64)
        e = edges_of(edge, entry, live)
        raw = tl.load(source + j[:, None] * HEADS + h[None, :], mask=at, other=0).to(ACC) + at_target[None, :]
        if logit is not None:
            raw += tl.load(logit + e[:, None] * HEADS + h[None, :], mask=at, other=0).to(ACC)
        s = tl.where(live[:, None], tl.where(raw > 0, raw, raw * SLOPE), float("-inf"))
        top, total, term, shrink = softmax_step(s, top, total)
        if seed is not None:
            term = tl.where(keeps(seed, e, h, HEADS, limit), term, 0.0)
        at_v = live[:, None, None] & in_hf[None, :, :]
        v = tl.load(value + j[:, None, None] * (HEADS * FEATURES) + hf[None, :, :], mask=at_v, other=0).to(ACC)
        acc = acc * shrink[:, None] + tl.sum(term[:, :, None] * v, 0)
    result, log_total = finish(acc, top, total, KEEP)
    tl.store(out + row * (HEADS * FEATURES) + hf, result.to(out.dtype.element_ty), mask=in_hf)
    tl.store(lse + row * HEADS + h, log_total, mask=in_h)


@triton.jit
def additive_rows_kernel(
    grad_target, grad_logit, delta, rowptr, col, edge, value, source, target, logit, seed, lse, out, grad,
    limit,
    SLOPE: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr,
    HEADS: tl.constexpr, FEATURES: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Gradients of target and edge; also writes ``delta`` ``[M, H]`` for the columns."""
    row = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    f = tl.arange(0, BLOCK_F)
    in_h = h < HEADS
    in_hf = in_h[:, None] & (f < FEATURES)[None, :]
    hf = h[:, None] * FEATURES + f[None, :]
    begin, end = row_bounds(rowptr, row)
    g = tl.load(grad + row * (HEADS * FEATURES) + hf, mask=in_hf, other=0).to(ACC)
    o = tl.load(out + row * (HEADS * FEATURES) + hf, mask=in_hf, other=0).to(ACC)
    d = tl.sum(g * o, 1)
    tl.store(delta + row * HEADS + h, d, mask=in_h)
    at_target = tl.load(target + row * HEADS + h, mask=in_h, other=0).to(ACC)
    at_lse = safe_lse(tl.load(lse + row * HEADS + h, mask=in_h, other=0))
    total = tl.zeros([BLOCK_H], ACC)
    for start in range(begin, end, BLOCK_E):
        entry = start + tl.arange(0, BLOCK_E)
        live = entry < end
        at = live[:, None] & in_h[None, :]
        j = tl.load(col + entry, mask=live, other=0).to(tl.int64)
        e = edges_of(edge, entry, live)
        raw = tl.load(source + j[:, None] * HEADS + h[None, :], mask=at, other=0).to(ACC) + at_target[None, :]
        if logit is not None:
            raw += tl.load(logit + e[:, None] * HEADS + h[None, :], mask=at, other=0).to(ACC)
        alpha = tl.exp(tl.where(raw > 0, raw, raw * SLOPE) - at_lse[None, :])
        at_v = live[:, None, None] & in_hf[None, :, :]
        v = tl.load(value + j[:, None, None] * (HEADS * FEATURES) + hf[None, :, :], mask=at_v, other=0).to(ACC)
        grad_alpha = tl.sum(v * g[None, :, :], 2)
        if seed is not None:
            grad_alpha = tl.where(keeps(seed, e, h, HEADS, limit), grad_alpha * KEEP, 0.0)
        grad_raw = alpha * (grad_alpha - d[None, :])
        grad_raw = tl.where(at, tl.where(raw > 0, grad_raw, grad_raw * SLOPE), 0.0)
        if logit is not None:
            tl.store(grad_logit + e[:, None] * HEADS + h[None, :], grad_raw.to(grad_logit.dtype.element_ty), mask=at)
        total += tl.sum(grad_raw, 0)
    tl.store(grad_target + row * HEADS + h, total.to(grad_target.dtype.element_ty), mask=in_h)


@triton.jit
def additive_columns_kernel(
    grad_value, grad_source, rowptr, col, edge, value, source, target, logit, seed, lse, delta, grad,
    limit,
    SLOPE: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr,
    HEADS: tl.constexpr, FEATURES: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Gradients of value and source; ``rowptr``, ``col``, ``edge`` are those of the transpose."""
    row = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    f = tl.arange(0, BLOCK_F)
    in_h = h < HEADS
    in_hf = in_h[:, None] & (f < FEATURES)[None, :]
    hf = h[:, None] * FEATURES + f[None, :]
    begin, end = row_bounds(rowptr, row)
    v = tl.load(value + row * (HEADS * FEATURES) + hf, mask=in_hf, other=0).to(ACC)
    at_source = tl.load(source + row * HEADS + h, mask=in_h, other=0).to(ACC)
    total = tl.zeros([BLOCK_H], ACC)
    acc = tl.zeros([BLOCK_H, BLOCK_F], ACC)
    for start in range(begin, end, BLOCK_E):
        entry = start + tl.arange(0, BLOCK_E)
        live = entry < end
        at = live[:, None] & in_h[None, :]
        i = tl.load(col + entry, mask=live, other=0).to(tl.int64)
        e = edges_of(edge, entry, live)
        ih = i[:, None] * HEADS + h[None, :]
        raw = tl.load(target + ih, mask=at, other=0).to(ACC) + at_source[None, :]
        if logit is not None:
            raw += tl.load(logit + e[:, None] * HEADS + h[None, :], mask=at, other=0).to(ACC)
        at_lse = safe_lse(tl.load(lse + ih, mask=at, other=0))
        alpha = tl.where(at, tl.exp(tl.where(raw > 0, raw, raw * SLOPE) - at_lse), 0.0)
        at_g = live[:, None, None] & in_hf[None, :, :]
        g = tl.load(grad + i[:, None, None] * (HEADS * FEATURES) + hf[None, :, :], mask=at_g, other=0).to(ACC)
        grad_alpha = tl.sum(g * v[None, :, :], 2)
        weight = alpha
        if seed is not None:
            keep = keeps(seed, e, h, HEADS, limit)
            grad_alpha = tl.where(keep, grad_alpha * KEEP, 0.0)
            weight = tl.where(keep, alpha * KEEP, 0.0)
        grad_raw = alpha * (grad_alpha - tl.load(delta + ih, mask=at, other=0))
        total += tl.sum(tl.where(raw > 0, grad_raw, grad_raw * SLOPE), 0)
        acc += tl.sum(weight[:, :, None] * g, 0)
    tl.store(grad_value + row * (HEADS * FEATURES) + hf, acc.to(grad_value.dtype.element_ty), mask=in_hf)
    tl.store(grad_source + row * HEADS + h, total.to(grad_source.dtype.element_ty), mask=in_h)


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
    _, heads, features = value.shape
    rows = adjacency.num_rows
    out = value.new_empty(rows, heads, features)
    lse = value.new_empty(rows, heads, dtype=compute_dtype(value, source, target, edge))
    drop = Dropout.of(dropout, seed)
    launch(
        additive_forward_kernel, rows, heads, tile(heads, features, 1),
        (out, lse, *adjacency_of(adjacency), *contiguous(value, source, target, edge), drop.seed),
        drop.limit, SLOPE=slope, KEEP=drop.keep, ACC=accumulator(lse), HEADS=heads, FEATURES=features,
    )  # fmt: skip
    return out, lse


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
    _, heads, features = value.shape
    drop, size = Dropout.of(dropout, seed), tile(heads, features, 1)
    operands = (*contiguous(value, source, target, edge), drop.seed)
    grad = grad.contiguous()
    grad_value, grad_source, grad_target = (t.new_empty(t.shape) for t in (value, source, target))
    grad_edge = None if edge is None else edge.new_empty(edge.shape)
    delta = lse.new_empty(lse.shape)
    constants = {"SLOPE": slope, "KEEP": drop.keep, "ACC": accumulator(lse), "HEADS": heads, "FEATURES": features}
    launch(
        additive_rows_kernel, adjacency.num_rows, heads, size,
        (grad_target, grad_edge, delta, *adjacency_of(adjacency), *operands, lse, out, grad), drop.limit, **constants,
    )  # fmt: skip
    launch(
        additive_columns_kernel, transposed.num_rows, heads, size,
        (grad_value, grad_source, *adjacency_of(transposed), *operands, lse, delta, grad), drop.limit, **constants,
    )  # fmt: skip
    return grad_value, grad_source, grad_target, value.new_empty(0) if grad_edge is None else grad_edge
