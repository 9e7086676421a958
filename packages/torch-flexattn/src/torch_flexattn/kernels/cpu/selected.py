"""Attention of each query to blocks of keys of its own, in PyTorch operations, on any device.

One block of keys after the other: the queries that selected it are gathered, at most :data:`MOST` at a time, so no
keys are copied and memory is bounded. The softmax of a query is carried from block to block (Milakov and Gimelshein,
*Online normalizer calculation for softmax*, 2018).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from ..selected_lists import by_block
from .tile import MINUS_INFINITY, exponential, product

MOST = 1024
"""Queries of a step."""


@torch.no_grad()
def forward(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, *, block_size: int, scale: float, causal: bool, q_offset: int
) -> tuple[Tensor, Tensor]:
    """Attention to selected blocks.

    Args:
        q: ``[B, Hq, L, E]``, of any float type and strides.
        k: ``[B, Hkv, S, E]``; ``Hkv`` divides ``Hq``.
        v: ``[B, Hkv, S, Ev]``.
        blocks: integers ``[B, Hkv, L, n]``, distinct for one query: which blocks of keys a query sees; below 0, or from
            ``⌈S / block_size⌉`` on: none.
        block_size: keys of a block.
        scale: of the products.
        causal: a query sees no key behind it.
        q_offset: what is added to the number of a query.

    Returns:
        ``out`` ``[B, Hq, L, Ev]`` in the type and dimension order of ``q``; ``lse`` ``[B, Hq, L]`` in float32 (float64
        for float64). Where nothing is visible: 0 and −inf.
    """
    steps = _Steps(q, k, v, blocks, block_size, causal, q_offset)
    (batch, heads, rows, _), groups, width = q.shape, k.shape[1], v.shape[3]
    group = heads // max(groups, 1)
    shape = (batch * groups, group, rows)
    total = torch.zeros(*shape, 1, dtype=steps.dtype, device=q.device)
    top, sums = torch.full_like(total, MINUS_INFINITY), total.new_zeros(*shape, width)
    for plane, chosen, keys, seen in steps:
        query, key, value = steps.query(plane, chosen), steps.of_keys(k, plane, keys), steps.of_keys(v, plane, keys)
        scores = (query @ key.mT).mul_(scale).masked_fill_(~seen, MINUS_INFINITY)
        old = top[plane][:, chosen]
        new = torch.maximum(old, scores.amax(-1, keepdim=True))
        finite = new.masked_fill(new == MINUS_INFINITY, 0)
        weight, kept = exponential(scores.sub_(finite)), (old - finite).exp_()
        added = product(weight, value.expand(group, -1, -1), seen.expand_as(weight))
        sums[plane][:, chosen] = sums[plane][:, chosen].mul_(kept).add_(added)
        total[plane][:, chosen] = total[plane][:, chosen].mul_(kept).add_(weight.sum(-1, keepdim=True))
        top[plane][:, chosen] = new
    empty = top == MINUS_INFINITY
    lse = (total.log() + top.masked_fill(empty, 0)).view(batch, heads, rows)
    out = _ordered_like(q, width)
    out.copy_(sums.div_(total.masked_fill_(empty, 1)).view(batch, heads, rows, width))
    return out, lse


@torch.no_grad()
def backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    blocks: Tensor,
    *,
    block_size: int,
    scale: float,
    causal: bool,
    q_offset: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``q``, ``k`` and ``v``; see :func:`forward` for the arguments."""
    steps = _Steps(q, k, v, blocks, block_size, causal, q_offset)
    (batch, heads, rows, width), (_, groups, keys_count, _), width_v = q.shape, k.shape, v.shape[3]
    group = heads // max(groups, 1)
    shape = (batch * groups, group, rows)
    delta = (out.to(steps.dtype) * grad_out.to(steps.dtype)).sum(-1, keepdim=True)
    if grad_lse is not None:
        delta = delta - grad_lse.to(steps.dtype).unsqueeze(-1)
    delta, lses = delta.view(*shape, 1), lse.to(steps.dtype).view(*shape, 1)
    lses = torch.where(lses == MINUS_INFINITY, -MINUS_INFINITY, lses)  # of rows that see nothing all weights are 0
    of_q = delta.new_zeros(*shape, width)
    of_k, of_v = (delta.new_zeros(batch * groups, keys_count, n) for n in (width, width_v))
    for plane, chosen, keys, seen in steps:
        query, key, value = steps.query(plane, chosen), steps.of_keys(k, plane, keys), steps.of_keys(v, plane, keys)
        grad = steps.rows_of(grad_out, plane, chosen)
        scores = (query @ key.mT).mul_(scale).masked_fill_(~seen, MINUS_INFINITY)
        weight = exponential(scores.sub_(lses[plane][:, chosen]))
        of_v[plane, keys] += (weight.mT @ grad).sum(0)
        change = weight.mul_((grad @ value.mT).sub_(delta[plane][:, chosen])).masked_fill_(~seen, 0)
        of_q[plane][:, chosen] += product(change, key.expand(group, -1, -1), seen.expand_as(change))
        of_k[plane, keys] += (change.mT @ query).sum(0)
    grad_q = _ordered_like(q, width)
    grad_q.copy_(of_q.mul_(scale).view(q.shape))
    return grad_q, of_k.mul_(scale).view(k.shape).to(k.dtype), of_v.view(v.shape).to(v.dtype)


class _Steps:
    """Queries and the block that they selected, one after the other."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, block_size: int, causal: bool, q_offset: int
    ) -> None:
        self.dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self._q, self._groups, self._keys = q, k.shape[1], k.shape[2]
        self._group = q.shape[1] // max(self._groups, 1)
        self._size, self._causal, self._offset = block_size, causal, q_offset
        self._columns = -(-self._keys // block_size)
        self._lists = by_block(blocks, self._columns)

    def __iter__(self) -> Iterator[tuple[int, Tensor, slice, Tensor]]:
        """Plane, queries ``[m]``, keys, and which of them are visible, ``[m, keys]``."""
        begin = self._lists.begin.tolist()
        for block, (start, stop) in enumerate(itertools.pairwise(begin)):
            first = block % self._columns * self._size
            keys = slice(first, min(first + self._size, self._keys))
            number = torch.arange(keys.start, keys.stop, device=self._q.device)
            for part in range(start, stop, MOST):
                chosen = self._lists.queries[part : min(part + MOST, stop)].long()
                seen = torch.ones(chosen.shape[0], number.shape[0], dtype=torch.bool, device=number.device)
                if self._causal:
                    seen = number <= (chosen + self._offset).unsqueeze(1)
                yield block // self._columns, chosen, keys, seen

    def query(self, plane: int, chosen: Tensor) -> Tensor:
        """``[group, m, E]``."""
        return self.rows_of(self._q, plane, chosen)

    def rows_of(self, t: Tensor, plane: int, chosen: Tensor) -> Tensor:
        """Of the heads of a group, ``[group, m, …]``, of ``t`` ``[B, Hq, L, …]``."""
        b, g = divmod(plane, self._groups)
        heads = t[b, g * self._group : (g + 1) * self._group]
        return heads.index_select(1, chosen).to(self.dtype)

    def of_keys(self, t: Tensor, plane: int, keys: slice) -> Tensor:
        """``[keys, …]``, of ``t`` ``[B, Hkv, S, …]``."""
        b, g = divmod(plane, self._groups)
        return t[b, g, keys].to(self.dtype)


def _ordered_like(q: Tensor, width: int) -> Tensor:
    """An empty tensor with the dimension order of ``q``."""
    order = sorted(range(3), key=lambda d: -q.stride(d))
    return torch.empty_permuted((*q.shape[:3], width), (*order, 3), dtype=q.dtype, device=q.device)
