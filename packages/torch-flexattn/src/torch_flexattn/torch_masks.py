"""To and from ``torch.nn.attention.flex_attention.BlockMask``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as theirs

from .analysis.geometry import Geometry
from .analysis.relabel import relabelled
from .block_mask import BlockMask
from .errors import InputError, KindError
from .evaluate import evaluator
from .mods import MaskMod, mask_mod
from .reindex import everything

OURS = "torch_flexattn_mask"
"""Attribute of the function that is given to PyTorch: the mask that it was."""


def from_torch(mask: theirs.BlockMask) -> BlockMask:
    """From PyTorch's block mask.

    Its lists are kept: a block that they leave out stays hidden, one that they call full is visible throughout. Blocks
    that they call partial are looked at, because PyTorch counts positions past the end as hidden.

    Args:
        mask: with two, three or four dimensions; of fewer, the missing ones are 1. Where all batches (or heads) have
            the same blocks and the same mask, one is kept.

    Raises:
        KindError: something else.
        InputError: a block that is no multiple of 16; a sliced mask (PyTorch drops its ``mask_mod``).

    Example:
        >>> from torch.nn.attention import flex_attention
        >>> theirs = flex_attention.create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 1000, 1000, device="cpu")
        >>> theirs.full_kv_num_blocks.sum().item(), BlockMask.from_torch(theirs).nnz_blocks()
        (21, (8, 28))
    """
    if not isinstance(mask, theirs.BlockMask):
        raise KindError(f"from_torch needs a torch BlockMask, got {type(mask).__name__}")
    if mask.mask_mod is getattr(theirs, "_sliced_mask_mod_error", None):
        raise InputError(
            "a sliced torch BlockMask has lost its mask_mod: set mask.mask_mod, or slice after the conversion"
        )
    block = (mask.BLOCK_SIZE[0], mask.BLOCK_SIZE[1])
    if any(b % 16 for b in block):
        raise InputError(f"BLOCK_SIZE must be multiples of 16, got {block}")
    mod = everything() if mask.mask_mod is theirs.noop_mask else mask_mod(getattr(mask.mask_mod, OURS, mask.mask_mod))
    lists = _lists(mask, mod.dependencies)
    batches, heads = lists[0].shape[:2]
    shape = (batches, heads, mask.seq_lengths[0], mask.seq_lengths[1])
    geometry = Geometry(shape, block, mask.kv_num_blocks.device)
    blocks = [_listed(number, indices, geometry) for number, indices in zip(lists[::2], lists[1::2])]
    row, column = (torch.cat(of) for of in zip(*blocks))
    is_full = torch.arange(row.shape[0], device=row.device) >= blocks[0][0].shape[0]
    row_ptr, runs = relabelled(mod, geometry, row, column, column + 1, is_full)
    return BlockMask(row_ptr, runs, shape, block, None if mask.mask_mod is theirs.noop_mask else mod, listed=True)


def to_torch(mask: BlockMask) -> theirs.BlockMask:
    """As PyTorch's block mask.

    Full blocks at an edge that is no whole block become partial, as PyTorch builds them.

    Args:
        mask: the mask. PyTorch's has a row of indices as long as the mask has columns, for every row of blocks.

    Example:
        >>> from torch_flexattn import create_block_mask
        >>> mask = create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 1000, 1000)
        >>> mask.to_torch().full_kv_num_blocks.sum().item()
        21
    """
    kinds = mask.kinds()
    queries, keys = mask.shape[2:]
    edges = torch.zeros_like(kinds, dtype=torch.bool)
    edges[:, :, queries // mask.block[0] :] = True
    edges[..., keys // mask.block[1] :] = True
    partial, full = (kinds == 1) | ((kinds == 2) & edges), (kinds == 2) & ~edges
    return theirs.BlockMask.from_kv_blocks(
        *_ordered(partial),
        *_ordered(full),
        BLOCK_SIZE=mask.block,
        mask_mod=theirs.noop_mask if mask.mod is None else _readable(mask.mod),
        seq_lengths=(queries, keys),
    )


def _readable(mod: MaskMod) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """A plain function, whose code was generated before Dynamo reads it."""
    evaluate, captures, scalars = evaluator(mod.program), mod.captures, mod.scalars

    def visible(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        (result,), _ = evaluate({"b": b, "h": h, "q": q_idx, "kv": kv_idx}, captures, scalars)
        return result

    setattr(visible, OURS, mod)
    return visible


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Number of blocks of each row, and their columns before all others."""
    number = blocks.sum(-1, dtype=torch.int32)
    return number, blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)


def _lists(mask: theirs.BlockMask, needs: frozenset[str]) -> list[Tensor]:
    """Numbers and indices, of partial and of full blocks, ``[batches, heads, rows, …]``.

    One batch or head where the mask does not depend on it and the lists of all are the same.
    """
    lists = [mask.kv_num_blocks, mask.kv_indices]
    if mask.full_kv_num_blocks is not None and mask.full_kv_indices is not None:
        lists += [mask.full_kv_num_blocks, mask.full_kv_indices]
    planes = (1, 1, *mask.kv_num_blocks.shape[:-1])[-2:]
    lists = [t.reshape(*planes, *t.shape[mask.kv_num_blocks.dim() - 1 :]) for t in lists]
    for dimension, name in enumerate("bh"):
        if name not in needs and all(bool((t == t.narrow(dimension, 0, 1)).all()) for t in lists if t.numel()):
            lists = [t[:1] if dimension == 0 else t[:, :1] for t in lists]
    return lists


def _listed(number: Tensor, indices: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Row, counted over all planes, and column of every block of PyTorch's lists."""
    number, indices = number.reshape(-1), indices.reshape(-1, indices.shape[-1])
    inside = torch.arange(indices.shape[1], device=indices.device) < number[:, None]
    row, place = inside.nonzero().unbind(1)
    column = indices[row, place].long()
    if bool((column >= geometry.columns).any()) or number.shape[0] != geometry.planes * geometry.rows:
        raise InputError(
            f"the lists of the torch BlockMask do not fit its lengths {geometry.shape[2:]}: adjust it to them first"
        )
    return row, column
