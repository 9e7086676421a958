"""The blocks of keys that few queries see, found anew at each step on the device: nothing is read back."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from ...mods import MaskMod
from ...program import Program
from ..launch.kernel import Kernel
from ..launch.launch import launch
from .chunks import next_power_of_2
from .decode_source import Offset
from .index_width import reaching
from .places import arguments
from .row_blocks_source import source

BLOCK = 128
"""Keys of a block."""
MOST_QUERIES = 128
"""Of one row of blocks."""
LEAST_ROWS = 16
ROW_RUNS = Kernel("row_runs", module="torch_flexattn.kernels.triton.row_runs_kernel")


@dataclass(frozen=True, eq=False)
class RowBlocks:
    """Runs of one row of blocks for each plane (batch entry and head, where the mask depends on them).

    Attributes:
        begins: int32 ``[planes]``: first run of a plane.
        ends: int32 ``[planes]``: run after its last.
        runs: int32 ``[n, 2]``: (first column, column after the last << 1 | is_full).
        batches: 1, or those of the call.
        heads: 1, or those of the call.
        block: keys of a block.
        mod: what is visible in partial blocks; ``None``: there are none.
    """

    begins: Tensor
    ends: Tensor
    runs: Tensor
    batches: int
    heads: int
    block: int
    mod: MaskMod | None


def row_blocks(
    mask: MaskMod,
    shape: tuple[int, int, int, int],
    device: torch.device,
    *,
    offset: Offset = "one",
    q_offset: Tensor | int = 0,
    kv_lens: Tensor | None = None,
    slots: Tensor | None = None,
) -> RowBlocks:
    """Find the blocks: every position is looked at, which for few queries is little next to reading the keys.

    Args:
        mask: what is visible.
        shape: batches, heads, queries (at most 128), keys of the call.
        device: where the call runs.
        offset: where the numbers of queries begin (see ``decode_source``).
        q_offset: the number, or int ``[B]``; not read where ``offset`` is ``"last"``.
        kv_lens: int ``[B]``, or of each slot: keys behind are not looked at.
        slots: int ``[B]``: which of ``kv_lens`` are those of the batch.
    """
    batches, heads, queries, keys = shape
    one = offset == "one" and kv_lens is None and "b" not in mask.dependencies
    planes = 1 if one else batches, heads if "h" in mask.dependencies else 1
    columns, count = -(-keys // BLOCK), planes[0] * planes[1]
    kinds = torch.empty(count, columns, dtype=torch.int8, device=device)
    ends = torch.empty(2, count, dtype=torch.int32, device=device)
    runs = torch.empty(count * columns, 2, dtype=torch.int32, device=device)
    wide = reaching(mask)
    if kinds.numel():
        launch(
            _kernel(wide.program, slots is not None, kv_lens is not None, offset), (count, columns),
            [
                kinds, slots, kv_lens, q_offset if offset == "each" else None, planes[1], queries, keys,
                q_offset if offset == "one" else 0, columns, *arguments([wide]),
            ],
            ROWS=max(LEAST_ROWS, next_power_of_2(queries)), MASK_N=BLOCK,
        )  # fmt: skip
    if count:
        launch(ROW_RUNS, (count, 1), [kinds, ends[0], ends[1], runs, columns], WIDTH=1024)
    return RowBlocks(ends[0], ends[1], runs, *planes, BLOCK, mask)


@functools.lru_cache(maxsize=1024)
def _kernel(program: Program, slots: bool, lens: bool, offset: Offset) -> Kernel:
    """That of a mask, printed once."""
    return Kernel("classify", source(program, slots=slots, lens=lens, offset=offset))
