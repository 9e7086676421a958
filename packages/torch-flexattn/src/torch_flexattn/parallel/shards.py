"""Tensors cut by a plan, and put together again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from ..errors import InputError, KindError
from .exchange import gather
from .group import place_in
from .plan import ShardPlan


def shard(x: Tensor, plan: ShardPlan, rank: int, dim: int) -> Tensor:
    """What a rank holds of a tensor; differentiable.

    Args:
        x: ``[..., length, ...]``, of the whole sequence.
        plan: of :func:`shard_plan`.
        rank: whose part.
        dim: the dimension of tokens: 2 of queries ``[B, H, L, E]``, 1 of tokens ``[B, L]``.

    Returns:
        ``[..., local_length, ...]``.

    Raises:
        InputError: another length; no such rank or dimension.
        KindError: ``rank`` or ``dim`` is no integer.

    Example:
        >>> import torch
        >>> from torch_flexattn import create_block_mask, masks, parallel
        >>> plan = parallel.shard_plan(create_block_mask(masks.causal(), None, None, 64, 64, BLOCK_SIZE=16), 2)
        >>> x = torch.arange(64)
        >>> parts = [parallel.shard(x, plan, rank, 0) for rank in range(2)]
        >>> parts[0].shape, bool((parallel.unshard(parts, plan, 0) == x).all())
        (torch.Size([32]), True)
    """
    dim = _dimension(x, "x", dim)
    _check_length(x, "x", dim, plan.length)
    return x.index_select(dim, plan.positions(rank, x.device))


def unshard(parts: Sequence[Tensor], plan: ShardPlan, dim: int) -> Tensor:
    """The whole tensor from what all ranks hold; differentiable, and without communication.

    Args:
        parts: ``[..., local_length, ...]`` of each rank, in their order.
        plan: by which they were cut.
        dim: the dimension of tokens.

    Returns:
        ``[..., length, ...]``.

    Raises:
        InputError: another number of parts, or another length.
        KindError: ``dim`` is no integer.

    Example:
        >>> import torch
        >>> from torch_flexattn import create_block_mask, masks, parallel
        >>> mask = create_block_mask(masks.causal(), None, None, 64, 64, BLOCK_SIZE=16)
        >>> plan = parallel.shard_plan(mask, 2, "zigzag")
        >>> parallel.unshard([torch.zeros(1, 32), torch.ones(1, 32)], plan, 1)[0, ::16]
        tensor([0., 1., 1., 0.])
    """
    if len(parts) != plan.world:
        raise InputError(f"parts must be one of each of {plan.world} ranks, got {len(parts)}")
    for rank, part in enumerate(parts):
        _check_length(part, f"parts[{rank}]", _dimension(part, f"parts[{rank}]", dim), plan.local_length)
    device = parts[0].device
    order = torch.cat([plan.positions(rank, device) for rank in range(plan.world)]).argsort()
    return torch.cat(list(parts), dim).index_select(dim, order)


@torch.no_grad()
def gather_shards(x: Tensor, plan: ShardPlan, dim: int, group: ProcessGroup | None = None) -> Tensor:
    """The whole tensor on every rank: :func:`unshard` of what the ranks of a group hold; it has no gradient.

    Args:
        x: ``[..., local_length, ...]``, what this rank holds.
        plan: by which it was cut.
        dim: the dimension of tokens.
        group: of the ranks; default: all.

    Returns:
        ``[..., length, ...]``.

    Raises:
        InputError: another length; a plan for another number of ranks.
        KindError: ``dim`` is no integer.

    Example:
        >>> import torch
        >>> from torch_flexattn import create_block_mask, masks, parallel
        >>> plan = parallel.shard_plan(create_block_mask(masks.causal(), None, None, 64, 64, BLOCK_SIZE=16), 1)
        >>> parallel.gather_shards(torch.zeros(64, 3), plan, 0).shape
        torch.Size([64, 3])
    """
    dim = _dimension(x, "x", dim)
    _check_length(x, "x", dim, plan.local_length)
    place_in(group, plan)
    parts = gather(x.reshape(-1), plan.world, group)
    return unshard([part.view(x.shape) for part in parts], plan, dim)


def _dimension(x: Tensor, name: str, dim: int) -> int:
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise KindError(f"dim must be an integer, got {dim!r}")
    if not -x.dim() <= dim < x.dim():
        raise InputError(f"dim must be a dimension of {name} {tuple(x.shape)}, got {dim}")
    return dim % x.dim()


def _check_length(x: Tensor, name: str, dim: int, length: int) -> None:
    if x.shape[dim] != length:
        raise InputError(f"{name} must have {length} tokens in dimension {dim}, got {tuple(x.shape)}")
