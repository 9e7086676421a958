"""The runs of a block mask as kernels walk them; those of no mask, too."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ...block_mask import BlockMask

BLOCK = (128, 128)
"""Where there is no mask."""


@functools.lru_cache(maxsize=64)
def _everything(rows: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Runs of a mask that hides nothing."""
    row_ptr = torch.arange(rows + 1, dtype=torch.int32, device=device)
    runs = torch.tensor([[0, columns << 1 | 1]], dtype=torch.int32, device=device).repeat(rows, 1)
    return row_ptr, runs


def runs_of(
    mask: BlockMask | None, rows: int, keys: int, device: torch.device, columns: bool = False
) -> tuple[Tensor, Tensor, tuple[int, int], tuple[int, int]]:
    """Runs by rows or by columns, the block, and how many of them lie between batches and between heads."""
    if mask is None:
        counts = -(-rows // BLOCK[0]), -(-keys // BLOCK[1])
        return *_everything(*(counts[::-1] if columns else counts), device), BLOCK, (0, 0)
    pointers, runs = mask.transpose_runs() if columns else (mask.row_ptr, mask.runs)
    count = mask.geometry.columns if columns else mask.geometry.rows
    batches, heads = mask.shape[:2]
    return pointers, runs, mask.block, (count * heads if batches > 1 else 0, count if heads > 1 else 0)
