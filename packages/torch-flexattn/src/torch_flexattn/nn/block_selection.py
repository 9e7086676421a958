"""Which blocks of keys a query selects, by the weights that it gave to compressed blocks.

Weights are made again from scores and ``lse``, for a stretch of queries at a time, so of queries times compressed
blocks no more than :data:`MOST` numbers are held at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

MOST = 2**24
"""Weights that are made at once."""


@dataclass(frozen=True)
class Blocks:
    """Sizes of blocks, in tokens.

    Attributes:
        compressed: of a compressed block.
        stride: from one compressed block to the next; divides the other two.
        selected: of a block that is selected.
        count: how many blocks a query selects: the first one, its own and the one before, and those of most weight.
    """

    compressed: int
    stride: int
    selected: int
    count: int


@torch.no_grad()
def select_blocks(q: Tensor, k: Tensor, lse: Tensor, scale: float, blocks: Blocks) -> Tensor:
    """The blocks of each query, causally.

    Args:
        q: ``[B, Hq, L, E]``.
        k: ``[B, Hkv, C, E]``: compressed keys, of which block ``c`` ends with token ``c · stride + compressed - 1``.
        lse: ``[B, Hq, L]``: of the attention to them.
        scale: of the products.
        blocks: sizes.

    Returns:
        int64 ``[B, Hkv, L, n]``, ``n`` at most ``blocks.count``; −1 where a query has fewer blocks up to its own.
    """
    batch, heads, rows, _ = q.shape
    groups, compressed = k.shape[1:3]
    columns = -(-rows // blocks.selected)
    number = torch.arange(columns, device=q.device)
    end = torch.arange(compressed, device=q.device) * blocks.stride + (blocks.compressed - 1)
    each = max(1, MOST // max(batch * heads * compressed, 1))
    found = []
    for start in range(0, rows, each):
        stop = min(start + each, rows)
        query = torch.arange(start, stop, device=q.device).unsqueeze(1)
        scores = (q[:, :, start:stop].unflatten(1, (groups, -1)) @ k.unsqueeze(2).mT).to(lse.dtype) * scale
        weight = (scores - lse[:, :, start:stop].unflatten(1, (groups, -1)).unsqueeze(-1)).exp()
        weight = weight.masked_fill(end > query, 0).sum(2)
        importance = weight_of_blocks(weight, columns, blocks)
        own = query // blocks.selected
        always = (number == 0) | (number == own) | (number == own - 1)
        importance = importance.masked_fill(always, float("inf")).masked_fill(number > own, float("-inf"))
        top = importance.topk(min(blocks.count, columns), -1)
        found.append(top.indices.masked_fill(top.values == float("-inf"), -1))
    return torch.cat(found, 2) if found else torch.empty(batch, groups, 0, 0, dtype=torch.int64, device=q.device)


def weight_of_blocks(weight: Tensor, columns: int, blocks: Blocks) -> Tensor:
    """Weights of compressed blocks added up over the blocks that can be selected: equation 9.

    A compressed block counts as often as it shares a stretch of ``stride`` tokens with a block. (The equation counts
    blocks from 1: ``Σ_m Σ_n p[(l'/d) j - m - n]``.)

    Args:
        weight: ``[..., C]``.
        columns: blocks that can be selected.
        blocks: sizes.

    Returns:
        ``[..., columns]``.
    """
    each, overlap = blocks.selected // blocks.stride, blocks.compressed // blocks.stride
    padded = F.pad(weight, (overlap - 1, max(columns * each - weight.shape[-1], 0)))
    total = weight.new_zeros(*weight.shape[:-1], columns)
    for place in range(each + overlap - 1):
        times = min(place + 1, each, overlap, each + overlap - 1 - place)
        total = total + times * padded[..., place : place + (columns - 1) * each + 1 : each]
    return total
