"""The process group of a plan."""

from __future__ import annotations

import torch.distributed as dist

from ..errors import InputError
from .plan import ShardPlan


def place_in(group: dist.ProcessGroup | None, plan: ShardPlan) -> int:
    """The rank of this process in a group; 0 without processes, where the plan is for one.

    Raises:
        InputError: the plan is for another number of ranks; this process is not in the group.
    """
    running = dist.is_available() and dist.is_initialized()
    if not running and plan.world == 1:
        return 0
    if not running:
        raise InputError(f"plan is for {plan.world} ranks, but torch.distributed is not initialized")
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise InputError(f"group does not hold this process, of rank {dist.get_rank()}")
    if size != plan.world:
        raise InputError(f"plan is for {plan.world} ranks, but group has {size}")
    return rank
