"""The cells of a mask: of single positions where it is small, else of blocks, or of several blocks each.

Only the runs of the block mask are read, so a picture of a long mask costs what its boundary costs, not its area.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from ..block_mask import BlockMask
from ..build import create_block_mask
from ..errors import InputError, KindError
from ..masks.lengths import with_lengths
from ..mods import MaskLike, MaskMod, mask_mod
from ..reindex import Always, reindexed
from ..runs import rows_of, used
from .cells import Cells, Colour, Key, chosen, pooled, steps

Level = Literal["auto", "position", "block"]
LEVELS = ("auto", "position", "block")
HIDDEN: Colour = (238, 240, 243)
PARTIAL: Colour = (240, 160, 60)
FULL: Colour = (38, 84, 140)
HIDDEN_IN_PARTIAL: Colour = (251, 230, 203)
POSITIONS = (HIDDEN, HIDDEN_IN_PARTIAL, PARTIAL, FULL)
COUNTED = 1 << 26
"""Positions of partial blocks that are counted one by one, at most."""
SHADES = "·░▒▓█"


def mask_cells(
    mask: BlockMask | MaskLike,
    q_len: int | None = None,
    kv_len: int | None = None,
    *,
    batch: int = 0,
    head: int = 0,
    block: int | tuple[int, int] = 128,
    level: Level = "auto",
    most: int = 32,
) -> Cells:
    """The cells of a mask.

    Args:
        mask: a block mask, a mask, or a function ``(b, h, q_idx, kv_idx) -> bool``.
        q_len: queries; those of a block mask are known.
        kv_len: keys; default: ``q_len``.
        batch: which batch entry is shown.
        head: which head.
        block: queries and keys of a block, multiples of 16; those of a block mask are known.
        level: ``"position"``: a cell a position; ``"block"``: a cell one block or several; ``"auto"``: positions where
            there are at most ``most`` queries and keys.
        most: cells in each direction, at most.

    Raises:
        InputError: lengths that are missing, or given for a block mask; too many positions; no such batch or head.
        KindError: no mask.
    """
    if level not in LEVELS:
        raise InputError(f"level must be one of {', '.join(LEVELS)}; got {level!r}")
    plane, title = _plane(mask, q_len, kv_len, batch, head, block)
    longest = max(plane.shape[2:])
    if level == "position" and longest > most:
        raise InputError(
            f"level='position' draws at most {most} queries and keys, got {plane.shape[2]} and {plane.shape[3]}"
        )
    if level == "position" or (level == "auto" and longest <= most):
        return _of_positions(plane, title)
    return _of_blocks(plane, title, most)


def _plane(
    mask: Any, q_len: int | None, kv_len: int | None, batch: int, head: int, block: int | tuple[int, int]
) -> tuple[BlockMask, str]:
    """The block mask of one batch entry and head, and a title."""
    for name, index in (("batch", batch), ("head", head)):
        if isinstance(index, bool) or not isinstance(index, int):
            raise KindError(f"{name} must be an integer, got {index!r}")
        if index < 0:
            raise InputError(f"{name} must not be negative, got {index}")
    if isinstance(mask, BlockMask):
        if q_len is not None or kv_len is not None:
            raise InputError(f"a block mask has its lengths, got q_len={q_len} and kv_len={kv_len}: cut it with crop()")
        for name, index, size in (("batch", batch, mask.shape[0]), ("head", head, mask.shape[1])):
            if size > 1 and index >= size:
                raise InputError(f"{name} must be below {size}, the number that the mask has, got {index}")
        indices = [0 if size == 1 else index for size, index in zip(mask.shape, (batch, head))]
        plane = mask if mask.shape[:2] == (1, 1) else mask[indices[0], indices[1]]
        needs = {name for name, size in zip("bh", mask.shape) if size > 1}
        return plane, _title(plane, needs, batch, head)
    if not isinstance(mask, MaskMod | Callable):
        raise KindError(f"mask must be a BlockMask, a mask or a function, got {type(mask).__name__}")
    mod = mask_mod(mask)
    if q_len is None:
        raise InputError("q_len must be given for a mask that is no block mask, got None")
    kv_len = q_len if kv_len is None else kv_len
    needs = set(mod.dependencies & {"b", "h"})
    mod = with_lengths(reindexed(mod, {"b": Always(batch), "h": Always(head)}), q_len, kv_len)
    plane = create_block_mask(mod, None, None, q_len, kv_len, BLOCK_SIZE=block)
    return plane, _title(plane, needs, batch, head)


def _title(plane: BlockMask, needs: set[str], batch: int, head: int) -> str:
    where = "".join(f", {name} {n}" for key, name, n in (("b", "batch", batch), ("h", "head", head)) if key in needs)
    return f"mask of {plane.shape[2]} queries × {plane.shape[3]} keys{where}"


def _of_positions(plane: BlockMask, title: str) -> Cells:
    seen = plane.to_element_mask()[0, 0].cpu()
    kinds = plane.kinds()[0, 0].cpu()
    kinds = kinds.repeat_interleave(plane.block[0], 0)[: seen.shape[0]]
    kinds = kinds.repeat_interleave(plane.block[1], 1)[:, : seen.shape[1]]
    state = torch.where(seen, kinds + 1, kinds).long()  # 0 hidden block; partial block: 1 hidden, 2 visible; 3 full
    palette = torch.tensor(POSITIONS, dtype=torch.uint8)
    meanings = ("hidden", "hidden, in a partial block", "visible, in a partial block", "visible, in a full block")
    keys = tuple(Key(POSITIONS[n], meanings[n]) for n in reversed(range(len(POSITIONS))) if bool((state == n).any()))
    notes = ("a cell is a position", *statistics(plane, visible=int(seen.sum())))
    characters = chosen("·█", seen.long())
    return Cells(title, palette[state], characters, plane.shape[2:], (1, 1), keys, "█ visible  · hidden", notes)


def _of_blocks(plane: BlockMask, title: str, most: int) -> Cells:
    geometry = plane.geometry
    down, right = steps(geometry.rows, most), steps(geometry.columns, most)
    partial, full = (x.cpu() for x in _block_counts(plane, down, right))
    total = pooled(torch.ones(geometry.rows, 1, dtype=torch.int64), down, 1)
    total = total * pooled(torch.ones(1, geometry.columns, dtype=torch.int64), 1, right)
    share = (full + 0.5 * partial) / total
    shade = torch.where(full == total, 4, torch.where(full + partial == 0, 0, (4 * share).long().clamp(1, 3)))
    weights = torch.stack([total - full - partial, partial, full], 2) / total[:, :, None]
    colours = (weights @ torch.tensor([HIDDEN, PARTIAL, FULL], dtype=weights.dtype)).round().to(torch.uint8)
    cell = down * plane.block[0], right * plane.block[1]
    keys = [Key(FULL, "full"), Key(PARTIAL, "partial"), Key(HIDDEN, "hidden")]
    if down == right == 1:
        legend, note = "█ full  ▒ partial  · hidden", f"a cell is a block of {cell[0]} × {cell[1]} positions"
    else:
        legend = "█ full  ▓▒░ in part, less and less  · hidden"
        note = f"a cell is {down} × {right} blocks of {plane.block[0]} × {plane.block[1]} positions"
    notes = (note, *statistics(plane))
    return Cells(title, colours, chosen(SHADES, shade), plane.shape[2:], cell, tuple(keys), legend, notes)


def _block_counts(plane: BlockMask, down: int, right: int) -> tuple[Tensor, Tensor]:
    """Partial and full blocks in each cell, int64 ``[rows, columns]``, from where runs begin and end."""
    geometry = plane.geometry
    runs = used(plane.row_ptr, plane.runs)
    row = rows_of(plane.row_ptr, runs.shape[0]) // down
    start, stop, is_full = runs[:, 0].long(), (runs[:, 1] >> 1).long(), (runs[:, 1] & 1).bool()
    rows, counts = -(-geometry.rows // down), []
    for kind in (~is_full, is_full):
        edges = torch.zeros(rows, geometry.columns + 1, dtype=torch.int64, device=plane.device)
        one = torch.ones_like(start[kind])
        edges.index_put_((row[kind], start[kind]), one, accumulate=True)
        edges.index_put_((row[kind], stop[kind]), -one, accumulate=True)
        counts.append(pooled(edges.cumsum(1)[:, :-1], 1, right))
    return counts[0], counts[1]


def statistics(plane: BlockMask, visible: int | None = None) -> tuple[str, ...]:
    """Lines about blocks and visible pairs of a block mask of one batch and head.

    Args:
        plane: the block mask.
        visible: visible pairs, where they are known. Otherwise positions of partial blocks are counted where they
            are at most :data:`COUNTED`, else bounds are given.
    """
    geometry = plane.geometry
    partial, full = plane.nnz_blocks()
    blocks, pairs = geometry.rows * geometry.columns, plane.numel()
    hidden = blocks - partial - full
    lines = [
        f"{partial:,} partial, {full:,} full, {hidden:,} hidden of {blocks:,} blocks, sparsity {plane.sparsity():.2f} %"
    ]
    area = partial * plane.block[0] * plane.block[1]
    if visible is None and area <= COUNTED:
        visible = plane.visible_pairs()
    if visible is not None:
        share = f" ({100 * visible / pairs:.3g} %)" if pairs else ""
        lines.append(f"{visible:,} of {pairs:,} pairs visible{share}")
    else:
        least = BlockMask(plane.row_ptr, plane.runs, plane.shape, plane.block).visible_pairs()  # of full blocks
        lines.append(
            f"{least:,} to {min(least + area, pairs):,} of {pairs:,} pairs visible (partial blocks not counted)"
        )
    return tuple(lines)
