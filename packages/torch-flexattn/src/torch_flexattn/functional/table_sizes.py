"""Captured tensors that do not fit the sizes of a call, as far as the sizes alone tell."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from ..analysis.geometry import Geometry
from ..analysis.index_bounds import reach, sizes_at
from ..analysis.undecided import refuse_undecided, undecided
from ..block_mask import BlockMask
from ..call import BLOCK
from ..errors import InputError
from ..masks_of_calls import shifted
from ..mods import MaskMod, ScoreMod


def check_table_sizes(mask: BlockMask | MaskMod, q: Tensor, k: Tensor, q_offset: Tensor | int) -> None:
    """Raise where a mask reads tensors that are too short for the call, as far as its sizes tell.

    Raises:
        InputError: so it is, and what the mask says depends on it.
    """
    mod = mask.mod if isinstance(mask, BlockMask) else mask
    if mod is None or not mod.captures:
        return
    seen = shifted(mod, q_offset)
    batches, heads = (n if name in seen.dependencies else 1 for name, n in zip("bh", q.shape))
    shape = batches, heads, q.shape[2], k.shape[2]
    with torch.no_grad():
        refuse_undecided(seen, Geometry(shape, BLOCK, q.device), suspected=True)


def check_head_tables(score: ScoreMod, q: Tensor, k: Tensor, *, checked: bool) -> None:
    """Warn where a score modification reads a tensor of more heads than the call has, raise where it is of fewer.

    Args:
        score: the modification.
        q: the queries.
        k: the keys.
        checked: whether kernels look at every read, so that fewer are found by them.

    Raises:
        InputError: a tensor is read behind its end, for a batch entry or head that the call has.
    """
    heads = q.shape[1]
    for table, dimension, size in sizes_at(score.program, "h", tuple(tuple(c.shape) for c in score.captures)):
        if size > heads > 0:
            warnings.warn(
                f"score_mod reads a captured tensor of shape {tuple(score.captures[table].shape)} at h (dimension "
                f"{dimension}), but query has {heads} heads: was it made for others, or is it transposed?",
                stacklevel=3,
            )
    if checked or not reach(score, (q.shape[0], heads, q.shape[2], k.shape[2])).short:
        return
    wrong = undecided(score)
    if wrong.dependencies <= {"b", "h"}:
        batch, head = torch.arange(q.shape[0], device=q.device)[:, None], torch.arange(heads, device=q.device)
        zero = torch.zeros((), dtype=torch.int64, device=q.device)
        for b, h in wrong(batch, head, zero, zero).nonzero()[:1].tolist():
            shapes = ", ".join(str(tuple(c.shape)) for c in score.captures)
            raise InputError(f"score_mod reads a captured tensor (of shape {shapes}) out of range at b={b}, h={h}")
