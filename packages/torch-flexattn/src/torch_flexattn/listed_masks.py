"""Block masks that calls may move or narrow: with an offset of queries, or beside another mask."""

from __future__ import annotations

import torch
from torch import Tensor

from .analysis.geometry import Geometry
from .analysis.relabel import relabelled
from .block_mask import BlockMask
from .build import refuse_bad_reads
from .errors import UnsupportedError
from .masks_of_calls import shifted
from .mods import MaskMod, mask_mod
from .runs import columns_of, take_rows
from .tables import by_position


def is_moved(mask: BlockMask, q_offset: Tensor | int) -> bool:
    """Whether an offset of queries makes other blocks of a mask than the ones it has.

    Raises:
        UnsupportedError: so it is, and the mask came from a list of blocks, so that it has no others.
    """
    if mask.mod is None or "q" not in mask.mod.dependencies or (isinstance(q_offset, int) and q_offset == 0):
        return False
    if mask.listed:
        raise UnsupportedError(
            "q_offset beside a block mask made from lists of blocks (or by PyTorch) whose mask looks at the query: the "
            "lists were made for queries numbered from 0; give lists without a mask, and the mask as mask_mod"
        )
    return True


def narrowed(
    mask: BlockMask, other: MaskMod, shape: tuple[int, int, int, int], q_offset: Tensor | int, check: bool
) -> BlockMask:
    """A mask made from a list of blocks, where another one holds as well: the listed blocks, looked at again.

    A block that the list calls full is visible throughout for the list, whatever its own mask says, as in PyTorch; so
    its mask does not count there.

    Args:
        mask: the listed blocks, of ``q_len`` queries and ``kv_len`` keys; its mask does not see the offset.
        other: the other mask; its queries are numbered from ``q_offset`` on.
        shape: batches, heads, queries, keys of the call.
        q_offset: one number, or int ``[B]``.
        check: refuse visible positions that read a captured tensor out of range.

    Raises:
        UnsupportedError: an offset, where the listed mask has a function of its own and full blocks beside.
        OutOfRangeError: see ``check``.
    """
    both = other
    if mask.mod is not None:
        own = mask.mod
        full = mask.kinds() == 2
        if bool(full.any()):
            if not isinstance(q_offset, int) or q_offset:
                raise UnsupportedError(
                    "q_offset and mask_mod beside a block mask made from lists of blocks and a mask of its own: give "
                    "lists without a mask, and both masks as mask_mod"
                )
            read, (height, width) = by_position(full), mask.block
            own = own | mask_mod(lambda b, h, q_idx, kv_idx: read(b, h, q_idx // height, kv_idx // width))
        both = own & other
    seen = shifted(both, q_offset)
    planes = [n if name in seen.dependencies else of for name, n, of in zip("bh", shape, mask.shape)]
    new = Geometry((planes[0], planes[1], *shape[2:]), mask.block, mask.device)
    if 0 in new.shape:
        return mask
    batch, head = (torch.arange(n, device=mask.device) % of for n, of in zip(planes, mask.shape))
    plane = (batch[:, None] * mask.shape[1] + head).flatten()
    rows = (plane[:, None] * new.rows + torch.arange(new.rows, device=mask.device)).flatten()
    row, column, is_full = columns_of(*take_rows(mask.row_ptr, mask.runs, rows))
    row_ptr, runs = relabelled(seen, new, row, column, column + 1, torch.zeros_like(is_full))
    if check and seen.captures:
        refuse_bad_reads(BlockMask(row_ptr, runs, new.shape, mask.block, seen))
    return BlockMask(row_ptr, runs, new.shape, mask.block, both, listed=True)
