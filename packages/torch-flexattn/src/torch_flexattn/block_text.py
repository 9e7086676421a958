"""A block mask as a few lines of text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .block_mask import BlockMask

ACROSS = 24
"""Characters of a line, at most."""
PLANES = 4
"""Batches and heads that are drawn, at most."""
SHADES = " ░▒▓█"


def picture(mask: BlockMask) -> str:
    """Shape, sparsity, and a grid: the darker, the more blocks are computed; full ones count twice."""
    partial, full = mask.nnz_blocks()
    lines = [f"BlockMask(shape={mask.shape}, sparsity={mask.sparsity():.2f}%, partial={partial}, full={full}"]
    kinds = mask.kinds().flatten(0, 1)
    rows, columns = kinds.shape[1:]
    step = max(1, -(-max(rows, columns) // ACROSS))
    for plane in range(min(PLANES, kinds.shape[0])):
        if kinds.shape[0] > 1:
            lines.append(f"batch {plane // mask.shape[1]}, head {plane % mask.shape[1]}")
        for row in range(0, rows, step):
            line = kinds[plane, row : row + step].float()
            cells = (float(line[:, c : c + step].mean()) / 2 for c in range(0, columns, step))
            lines.append("".join(SHADES[-1 if x == 1 else math.ceil(3 * x)] for x in cells).rstrip())
    if kinds.shape[0] > PLANES:
        lines.append(f"… {kinds.shape[0] - PLANES} more")
    return "\n".join(lines) + ")"
