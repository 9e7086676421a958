"""Runs whose number only the device knows: there is room for as many as there can be, so nothing waits for it."""

from __future__ import annotations

import torch
from torch import Tensor

from .runs import lengths_of


def merged(block: Tensor, opens: Tensor, shown: Tensor, is_full: Tensor) -> Tensor:
    """Runs of blocks that are in order.

    Args:
        block: int64 ``[n]``: row or column of each block.
        opens: bool ``[n]``: it is the first of a run.
        shown: bool ``[n]``: it is a block at all.
        is_full: bool ``[n]``: of which kind.

    Returns:
        int32 ``[n, 2]``, (first block, block after the last << 1 | is_full); zeros behind the last run.
    """
    room = block.shape[0]
    number = opens.cumsum(0) - 1
    runs = torch.zeros(room + 1, 2, dtype=torch.int32, device=block.device)  # the last is of what is no block
    place = number.masked_fill(~shown, room)
    stop = (block * 2 + 2 + is_full).to(torch.int32)
    runs[:, 0].scatter_reduce_(0, place, block.to(torch.int32), "amin", include_self=False)
    runs[:, 1].scatter_reduce_(0, place, stop, "amax", include_self=False)
    return runs[:room]


def transpose_within(
    room: int, row_ptr: Tensor, runs: Tensor, planes: int, rows: int, columns: int
) -> tuple[Tensor, Tensor]:
    """The same blocks by columns, as :func:`.runs.transpose`, of at most ``room`` blocks.

    Returns:
        ``col_ptr`` int32 ``[planes · columns + 1]`` and runs int32 ``[room, 2]``, of which ``col_ptr`` says which are
        used.
    """
    device = row_ptr.device
    length = lengths_of(runs)  # 0 behind the last run
    end = length.cumsum(0)
    block = torch.arange(room, device=device)
    run = torch.searchsorted(end, block, right=True)
    shown = run < runs.shape[0]
    run = run.clamp(max=max(runs.shape[0] - 1, 0))
    column = runs[run, 0] + block - (end[run] - length[run])
    row = torch.searchsorted(row_ptr.long(), run, right=True) - 1
    nowhere = planes * columns * (rows + 1)
    place = (row // max(rows, 1) * columns + column) * (rows + 1) + row % max(rows, 1)
    key = place.masked_fill(~shown, nowhere) * 2 + (runs[run, 1] & 1)
    key = key.sort().values
    place, is_full = key // 2, (key & 1).bool()
    shown = place < nowhere
    opens = shown.clone()
    opens[1:] &= ~((place[1:] == place[:-1] + 1) & (is_full[1:] == is_full[:-1]))
    col_ptr = torch.zeros(planes * columns + 2, dtype=torch.int32, device=device)
    col_ptr.index_add_(0, place // (rows + 1) + 1, opens.to(torch.int32))
    col_ptr = col_ptr[:-1].cumsum(0, dtype=torch.int32)
    return col_ptr, merged(place % (rows + 1), opens, shown, is_full)
