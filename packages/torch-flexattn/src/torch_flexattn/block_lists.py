"""A block mask from lists of blocks, as block-sparse attention chooses them at every step (MoBA, Quest, VSA)."""

from __future__ import annotations

import torch
from torch import Tensor

from .analysis.alike import as_tensor
from .analysis.boxes import Boxes
from .analysis.geometry import Blocks, Geometry
from .analysis.pyramid import axes
from .analysis.sides import divide
from .block_mask import BlockMask
from .errors import InputError, KindError
from .mods import MaskLike, MaskMod, mask_mod
from .runs_in_room import merged


def from_block_indices(
    kv_indices: Tensor,
    kv_num: Tensor | None = None,
    *,
    q_len: int,
    kv_len: int,
    block: tuple[int, int] = (128, 128),
    group: int = 1,
    mod: MaskLike | None = None,
    check: bool | None = None,
) -> BlockMask:
    """The mask that shows the listed blocks.

    The device is not waited for, here and in attention with its backward pass: the result has room for as many runs as
    there are indices, and ``row_ptr`` says which are used. Blocks next to each other become one run, whatever their
    order in the list.

    Args:
        kv_indices: integer ``[batches, heads, rows, n]``, columns of blocks; heads are those of queries, or 1, or, with
            ``group``, those of keys.
        kv_num: integer ``[batches, heads, rows]``, how many of the ``n`` count; ``None``: all.
        q_len: queries, so that there are ``rows`` rows of blocks.
        kv_len: keys.
        block: queries and keys of a block, multiples of 16.
        group: query heads that share a list, neighbouring ones, as those of a key head do: the result has
            ``heads · group`` heads.
        mod: a mask that holds inside the listed blocks; a block that it hides is left out, and one of which ranges of
            values do not tell stays partial. ``None``: all positions are visible.
        check: raise for indices that are out of range or repeated, which are left out otherwise; by default on a CPU
            only.

    Raises:
        InputError: shapes that do not fit; see ``check``.
        KindError: indices that are no integers.

    Example:
        >>> mask = BlockMask.from_block_indices(torch.tensor([[[[1, 0, 3], [2, 0, 0]]]]), torch.tensor([[[3, 1]]]),
        ...                                     q_len=256, kv_len=512)
        >>> mask.kinds()
        tensor([[[[2, 2, 0, 2],
                  [0, 0, 2, 0]]]], dtype=torch.int8)
    """
    mask = None if mod is None else mask_mod(mod)
    if isinstance(group, bool) or not isinstance(group, int) or group < 1:
        raise InputError(f"group must be a positive integer, got {group!r}")
    if group > 1 and kv_indices.dim() == 4:
        kv_indices = kv_indices.repeat_interleave(group, 1)
        kv_num = None if kv_num is None else kv_num.repeat_interleave(group, 1)
    geometry = _fitting(kv_indices, kv_num, (q_len, kv_len), block)
    columns = geometry.columns
    index = kv_indices.long().flatten(0, 2)
    counted = torch.ones_like(index, dtype=torch.bool)
    if kv_num is not None:
        counted = torch.arange(index.shape[1], device=index.device) < kv_num.reshape(-1, 1)
    inside = (index >= 0) & (index < columns)
    if (geometry.device.type == "cpu" if check is None else check) and bool((counted & ~inside).any()):
        raise InputError(f"kv_indices must be from 0 to {columns - 1}, got {int(index[counted & ~inside][0])}")
    column = index.masked_fill(~(counted & inside), columns).sort(1).values
    if (geometry.device.type == "cpu" if check is None else check) and column.shape[1]:
        twice = (column[:, 1:] == column[:, :-1]) & (column[:, 1:] < columns)
        if bool(twice.any()):
            raise InputError(f"kv_indices names block {int(column[:, 1:][twice][0])} twice in one row")
    shown, is_full = column < columns, torch.ones_like(column, dtype=torch.bool)
    if mask is not None and 0 not in geometry.shape:
        can_be_true, can_be_false = _inside(mask, geometry, column)
        shown, is_full = shown & can_be_true, ~can_be_false
    row_ptr, runs = _merged(column, shown, is_full)
    return BlockMask(row_ptr, runs, geometry.shape, block, mask, listed=True, room=runs.shape[0])


def _fitting(kv_indices: Tensor, kv_num: Tensor | None, lengths: tuple[int, int], block: tuple[int, int]) -> Geometry:
    for name, given in (("kv_indices", kv_indices), ("kv_num", kv_num)):
        if given is not None and (given.is_floating_point() or given.dtype == torch.bool):
            raise KindError(f"{name} must be integers, got {given.dtype}")
    if kv_indices.dim() != 4 or (kv_num is not None and kv_num.shape != kv_indices.shape[:3]):
        got = f"{tuple(kv_indices.shape)} and {None if kv_num is None else tuple(kv_num.shape)}"
        raise InputError(f"kv_indices must be [batches, heads, rows, n] and kv_num [batches, heads, rows], got {got}")
    if any(b < 16 or b % 16 for b in block):
        raise InputError(f"block must be multiples of 16, got {block}")
    shape = (kv_indices.shape[0], kv_indices.shape[1], *lengths)
    geometry = Geometry(shape, block, kv_indices.device)
    if geometry.rows != kv_indices.shape[2]:
        raise InputError(
            f"q_len={lengths[0]} has {geometry.rows} rows of blocks, but kv_indices has {kv_indices.shape[2]}"
        )
    return geometry


def _inside(mask: MaskMod, geometry: Geometry, column: Tensor) -> tuple[Tensor, Tensor]:
    """Whether blocks can be visible and can be hidden, as far as ranges tell."""
    planes = torch.arange(geometry.planes, device=column.device)
    boxes = Boxes(mask, divide(mask.program, mask.scalars, geometry.shape), geometry, axes(geometry, (1,)), planes)
    row = torch.arange(column.shape[0], device=column.device)[:, None].expand_as(column).flatten()
    blocks = Blocks.at(row // geometry.rows, row % geometry.rows, column.flatten().clamp(max=geometry.columns - 1))
    truth = boxes.run(0, blocks)
    can_be_true, can_be_false = (
        as_tensor(known, column.device).expand(len(blocks), 1, 1).reshape(column.shape)
        for known in (truth.can_be_true, truth.can_be_false)
    )
    return can_be_true, can_be_false


def _merged(column: Tensor, shown: Tensor, is_full: Tensor) -> tuple[Tensor, Tensor]:
    """Runs of ascending columns, repeated ones once; as much room for runs as there are columns."""
    rows, room = column.shape
    opens = shown.clone()
    if room > 1:
        near = column[:, 1:] - column[:, :-1] <= 1
        opens[:, 1:] &= ~(near & shown[:, :-1] & (is_full[:, 1:] == is_full[:, :-1]))
    row_ptr = torch.zeros(rows + 1, dtype=torch.int32, device=column.device)
    row_ptr[1:] = opens.sum(1).cumsum(0)
    return row_ptr, merged(column.flatten(), opens.flatten(), shown.flatten(), is_full.flatten())
