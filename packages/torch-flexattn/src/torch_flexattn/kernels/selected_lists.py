"""Which queries selected a block: lists of blocks turned round, on the device, without waiting for it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class ByBlock(NamedTuple):
    """The queries of each block; blocks are numbered ``plane · columns + block``, planes ``batch · Hkv + head``.

    Attributes:
        queries: int32 ``[planes · L · n]``: of one block after the other, ascending in each; what is behind the last
            block means nothing.
        begin: int64 ``[planes · columns + 1]``: where the queries of a block begin.
    """

    queries: Tensor
    begin: Tensor


def by_block(blocks: Tensor, columns: int) -> ByBlock:
    """Turn lists round.

    Args:
        blocks: integers ``[B, Hkv, L, n]``: blocks of each query; below 0 or from ``columns`` on: none.
        columns: blocks of keys.
    """
    batch, heads, rows, each = blocks.shape
    planes = batch * heads
    total = planes * columns
    dtype = torch.int32 if total < 2**31 else torch.int64
    block = blocks.reshape(planes, rows * each).to(dtype)
    first = torch.arange(0, total, max(columns, 1), dtype=dtype, device=blocks.device)[:planes]
    place = block + first.unsqueeze(1) if total else block
    ordered, order = place.masked_fill((block < 0) | (block >= columns), total).flatten().sort(stable=True)
    ends = torch.arange(total + 1, dtype=dtype, device=blocks.device)
    queries = (order % max(rows * each, 1) // max(each, 1)).to(torch.int32)
    return ByBlock(queries, torch.searchsorted(ordered, ends))


class Segments(NamedTuple):
    """Lists cut into pieces of at most so many queries, so that one long list is not the work of one program.

    Attributes:
        first: int64 ``[blocks + 1]``: the first segment of each block.
        owner: int64 ``[room]``: the block of each segment; as many as there are blocks where there is no segment.
    """

    first: Tensor
    owner: Tensor


def segments(lists: ByBlock, most: int) -> Segments:
    """Cut the lists; there is room for as many segments as there can be, whatever the lists are.

    Args:
        lists: the lists.
        most: queries of a segment.
    """
    blocks = lists.begin.shape[0] - 1
    first = torch.zeros_like(lists.begin)
    torch.cumsum((lists.begin.diff() + (most - 1)) // most, 0, out=first[1:])
    room = torch.arange(blocks + lists.queries.shape[0] // most, device=first.device)
    return Segments(first, torch.searchsorted(first[1:].contiguous(), room, right=True))
