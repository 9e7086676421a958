"""What the attention kernels in Triton share on the device: items of work, gathers, online softmax, dropout, stores.

A program takes one item of a :class:`~torch_tcgnn.row_plan.RowPlan` (a row, or a piece of a long one) and a group of
heads. It walks the item's entries ``BLOCK_E`` at a time and gathers ``[BLOCK_E, BLOCK_H, BLOCK_F]`` tiles of the
neighbours' features. Accumulation is float32, float64 for float64 operands. Rows write their results; pieces write
theirs beside, where :mod:`.attention_merge` merges them in order: no atomics, two runs agree bit for bit.

``ACC`` is the accumulator's type. Tiles are loaded flat, ``[BLOCK_E, BLOCK_H · BLOCK_F]``, then reshaped: of a load in
three dimensions Triton 3.6 spreads the entries over the threads, and sums over entries become shuffles. Masks of tiles
are made anew from the entries' numbers, never from a mask of ``[BLOCK_E]`` (see :mod:`.lanes`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..dropout import FIRST, GAMMA, SECOND
from .lanes import edge_of, item_of

_GAMMA = tl.constexpr(GAMMA)
_FIRST = tl.constexpr(FIRST)
_SECOND = tl.constexpr(SECOND)
_LOW_34 = tl.constexpr(2**34 - 1)
_LOW_37 = tl.constexpr(2**37 - 1)

COUNTS = ["num_long", "num_pieces"]
"""Kernel arguments that change with every graph: no compilation of their own."""
ITEMS = ["pieces", "wide", "short", "cut_rows"]
"""Slices of one table: their alignment changes with every graph."""


@triton.jit
def item(pieces, wide, short, num_long, num_pieces):
    """This program's row, its first entry (int64) and its number of entries."""
    number = tl.program_id(0)
    row, first, end = item_of(pieces, number, number < num_pieces)
    wide_row, wide_first, wide_end = item_of(wide, number - num_pieces, (number >= num_pieces) & (number < num_long))
    short_row, short_first, short_end = item_of(short, number - num_long, number >= num_long)
    first += wide_first + short_first
    return row + wide_row + short_row, first, (end + wide_end + short_end - first).to(tl.int32)


@triton.jit
def head_group(HEADS: tl.constexpr, BLOCK_H: tl.constexpr):
    """``[BLOCK_H]``: this program's heads, and which of them exist."""
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    return h, h < HEADS


@triton.jit
def features_of(HEADS: tl.constexpr, FEATURES: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr):
    """``[BLOCK_H · BLOCK_F]``: where this program's features stand in a row of ``[HEADS, FEATURES]``, which exist."""
    c = tl.arange(0, BLOCK_H * BLOCK_F)
    h = tl.program_id(1) * BLOCK_H + c // BLOCK_F
    return h * FEATURES + c % BLOCK_F, (h < HEADS) & (c % BLOCK_F < FEATURES)


@triton.jit
def entries(col, edge, first, start, count, BLOCK_E: tl.constexpr):
    """``[BLOCK_E]``: numbers of the next entries of an item from ``start`` on, their columns and their input edges."""
    at = start + tl.arange(0, BLOCK_E)
    entry = first + at
    return at, edge_of(col, entry, at < count), edge_of(edge, entry, at < count)


@triton.jit
def heads_of_row(table, row, h, mask, HEADS: tl.constexpr, ACC: tl.constexpr):
    """``[BLOCK_H]`` of one row of a table ``[N, HEADS]``."""
    return tl.load(table + row * HEADS + h, mask=mask, other=0).to(ACC)


@triton.jit
def heads_at(table, node, h, mask, HEADS: tl.constexpr, ACC: tl.constexpr):
    """``[BLOCK_E, BLOCK_H]`` of a table ``[N, HEADS]``."""
    return tl.load(table + node[:, None] * HEADS + h[None, :], mask=mask, other=0).to(ACC)


@triton.jit
def features_of_row(table, row, place, mask, WIDTH: tl.constexpr, BLOCK_H: tl.constexpr, ACC: tl.constexpr):
    """``[BLOCK_H, BLOCK_F]`` of one row of a table ``[N, WIDTH]``."""
    found = tl.load(table + row * WIDTH + place, mask=mask, other=0).to(ACC)
    return tl.reshape(found, [BLOCK_H, place.shape[0] // BLOCK_H])


@triton.jit
def features_at(table, node, place, mask, WIDTH: tl.constexpr, BLOCK_H: tl.constexpr, ACC: tl.constexpr):
    """``[BLOCK_E, BLOCK_H, BLOCK_F]`` of a table ``[N, WIDTH]``."""
    found = tl.load(table + node[:, None] * WIDTH + place[None, :], mask=mask, other=0).to(ACC)
    return tl.reshape(found, [node.shape[0], BLOCK_H, place.shape[0] // BLOCK_H])


@triton.jit
def store_features_at(table, node, place, values, mask, WIDTH: tl.constexpr):
    """Write ``[BLOCK_E, BLOCK_H, BLOCK_F]`` to a table ``[N, WIDTH]``."""
    flat = tl.reshape(values, [node.shape[0], place.shape[0]])
    tl.store(table + node[:, None] * WIDTH + place[None, :], flat.to(table.dtype.element_ty), mask=mask)


@triton.jit
def leaky(x, slope):
    return tl.where(x > 0, x, x * slope)


@triton.jit
def leaky_grad(x, grad, slope):
    """The gradient of ``x`` from that of ``leaky(x)``."""
    return tl.where(x > 0, grad, grad * slope)


@triton.jit
def keeps(seed, edge, head, heads, limit):
    """``[BLOCK_E, BLOCK_H]``: whether dropout keeps a weight; the hash of :mod:`..dropout`."""
    z = edge[:, None] * heads + (head + 1)[None, :]
    z = z * _GAMMA + tl.load(seed)
    z = (z ^ ((z >> 30) & _LOW_34)) * _FIRST
    z = (z ^ ((z >> 27) & _LOW_37)) * _SECOND
    return z >= limit


@triton.jit
def softmax_start(BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr, ACC: tl.constexpr):
    """A running softmax that has seen nothing: largest logit, sum of ``exp(logit − largest)``, weighted sum."""
    return tl.full([BLOCK_H], float("-inf"), ACC), tl.zeros([BLOCK_H], ACC), tl.zeros([BLOCK_H, BLOCK_F], ACC)


@triton.jit
def softmax_step(top, total, acc, logit, value, seed, edge, h, limit, HEADS: tl.constexpr):
    """Take logits ``[BLOCK_E, BLOCK_H]`` (−inf: no entry) and values ``[BLOCK_E, BLOCK_H, BLOCK_F]`` into it."""
    new = tl.maximum(top, tl.max(logit, 0))
    base = tl.where(new == float("-inf"), 0.0, new)
    shrink = tl.exp(top - base)
    term = tl.exp(logit - base[None, :])
    total = total * shrink + tl.sum(term, 0)
    if seed is not None:
        term = tl.where(keeps(seed, edge, h, HEADS, limit), term, 0.0)
    return new, total, acc * shrink[:, None] + tl.sum(term[:, :, None] * value, 0)


@triton.jit
def softmax_end(top, total, acc, keep: tl.constexpr):
    """Output and log-sum-exp; without a logit above −inf they are 0 and −inf."""
    share = tl.where(total == 0.0, 0.0, keep / total)
    return acc * share[:, None], top + tl.log(total)


@triton.jit
def softmax_weight(logit, lse, mask):
    """``[BLOCK_E, BLOCK_H]``: ``exp(logit − lse)``, 0 at targets without neighbours, whose lse is −inf."""
    return tl.where(mask, tl.exp(logit - tl.where(lse == float("-inf"), float("inf"), lse)), 0.0)


@triton.jit
def softmax_grad(alpha, grad_weight, delta, mask, seed, edge, h, limit, HEADS: tl.constexpr, KEEP: tl.constexpr):
    """``[BLOCK_E, BLOCK_H]``: the weights after dropout, and the gradients of the logits from those of the weights."""
    weight = alpha
    if seed is not None:
        keep = keeps(seed, edge, h, HEADS, limit)
        grad_weight = tl.where(keep, grad_weight * KEEP, 0.0)
        weight = tl.where(keep, alpha * KEEP, 0.0)
    return weight, tl.where(mask, alpha * (grad_weight - delta), 0.0)


@triton.jit
def store(out, part, row, num_pieces, place, result, mask, WIDTH: tl.constexpr):
    """Write the places ``place`` of a row of ``out`` or, for a piece, of ``part``; no ``part``: no row is cut."""
    result = tl.reshape(result, [place.shape[0]])
    if part is None:
        tl.store(out + row * WIDTH + place, result.to(out.dtype.element_ty), mask=mask)
    else:
        piece = tl.program_id(0).to(tl.int64)
        tl.store(out + row * WIDTH + place, result.to(out.dtype.element_ty), mask=mask & (piece >= num_pieces))
        tl.store(part + piece * WIDTH + place, result, mask=mask & (piece < num_pieces))
