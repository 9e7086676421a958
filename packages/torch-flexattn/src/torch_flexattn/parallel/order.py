"""Rows of blocks from the order of ranks to the original one, and back."""

from __future__ import annotations

from torch import Tensor

from .plan import ShardPlan


def in_original_order(parts: Tensor, plan: ShardPlan) -> Tensor:
    """The whole sequence, ``[B, H, length, E]``, from what each rank holds, ``[world, B, H, local_length, E]``."""
    _, inverse = plan.orders(parts.device)
    rows = parts.unflatten(3, (-1, plan.block)).permute(1, 2, 0, 3, 4, 5)  # [B, H, world, rows of a rank, block, E]
    each = rows.shape[3]
    return rows[:, :, inverse // each, inverse % each].flatten(2, 3)


def by_rank(whole: Tensor, plan: ShardPlan) -> Tensor:
    """What each rank holds of a sequence ``[B, H, length, E]``: ``[world, B, H, local_length, E]``."""
    permutation, _ = plan.orders(whole.device)
    rows = whole.unflatten(2, (-1, plan.block)).index_select(2, permutation)
    return rows.unflatten(2, (plan.world, -1)).flatten(3, 4).movedim(2, 0)
