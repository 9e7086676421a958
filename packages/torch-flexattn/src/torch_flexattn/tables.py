"""How mods read tables that have a leading dimension or not, and tables of where segments begin and end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Read = Callable[..., Any]


def by_token(table: Tensor) -> Read:
    """``(b, x) -> table[x]`` of a table ``[S]``, ``table[b, x]`` of ``[B, S]``.

    Example:
        >>> read = by_token(torch.tensor([5, 6, 7]))
        >>> read(torch.tensor(0), torch.tensor(2))
        tensor(7)
    """
    if table.dim() == 1:
        return lambda b, x: table[x]
    if table.shape[0] == 1:
        return lambda b, x: table[0][x]
    return lambda b, x: table[b, x]


def by_batch(value: int | Tensor) -> Read:
    """``(b) -> value[b]`` of a tensor ``[B]``, the number itself of a number.

    Example:
        >>> by_batch(7)(torch.tensor(1)), by_batch(torch.tensor([3, 4]))(torch.tensor(1))
        (7, tensor(4))
    """
    if not isinstance(value, Tensor):
        return lambda b: value
    if value.shape[0] == 1:
        return lambda b: value[0]
    return lambda b: value[b]


def by_position(table: Tensor) -> Read:
    """``(b, h, i, j) -> table[b, h, i, j]`` of a table of 1 to 4 dimensions, which are the last of these.

    A dimension of size 1 is read at 0, whatever the index.

    Example:
        >>> read = by_position(torch.tensor([[1], [2]]))
        >>> read(*torch.tensor([4, 5, 1, 6]))
        tensor(2)
    """
    single = tuple(size == 1 for size in table.shape)

    def read(*index: Any) -> Any:
        value = table
        for x, alone in zip(index[len(index) - len(single) :], single):
            value = value[0] if alone else value[x]
        return value

    return read


def segment_bounds(cu_seqlens: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """For each token the first of its segment, and the first after it.

    Args:
        cu_seqlens: ``[n + 1]``: where segments begin, and where the last one ends.
        total: number of tokens; those after the last segment are one more.

    Returns:
        Two int32 tensors ``[total]``.

    Example:
        >>> segment_bounds(torch.tensor([0, 2, 5]), 6)
        (tensor([0, 0, 2, 2, 2, 5], dtype=torch.int32), tensor([2, 2, 5, 5, 5, 6], dtype=torch.int32))
    """
    bounds = torch.cat([cu_seqlens, cu_seqlens.new_full((1,), total)]).to(torch.int32)
    token = torch.arange(total, dtype=cu_seqlens.dtype, device=cu_seqlens.device)
    segment = torch.searchsorted(cu_seqlens, token, right=True)
    return bounds[segment - 1], bounds[segment]


def run_bounds(ids: Tensor) -> tuple[Tensor, Tensor]:
    """For each token the first of the run of equal neighbours it is in, and the first after it.

    Args:
        ids: ``[..., S]``.

    Returns:
        Two int32 tensors of the shape of ``ids``.

    Example:
        >>> run_bounds(torch.tensor([7, 7, 3, 7]))
        (tensor([0, 0, 2, 3], dtype=torch.int32), tensor([2, 2, 3, 4], dtype=torch.int32))
    """
    position = torch.arange(ids.shape[-1], dtype=torch.int32, device=ids.device).expand(ids.shape)
    change = ids[..., 1:] != ids[..., :-1]
    edge = change.new_ones(*ids.shape[:-1], min(1, ids.shape[-1]))
    first, last = torch.cat([edge, change], -1), torch.cat([change, edge], -1)
    start = torch.where(first, position, 0).cummax(-1).values
    end = torch.where(last, position + 1, ids.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
    return start.to(torch.int32), end.to(torch.int32)


def in_single_runs(ids: Tensor) -> bool:
    """Whether equal numbers are always neighbours; waits for the device. False in a compiled graph, which cannot.

    Args:
        ids: ``[..., S]``.

    Example:
        >>> in_single_runs(torch.tensor([7, 7, 3])), in_single_runs(torch.tensor([7, 3, 7]))
        (True, False)
    """
    if torch.compiler.is_compiling():
        return False
    ordered = ids.sort(-1).values
    changes = [(x[..., 1:] != x[..., :-1]).sum(-1) for x in (ids, ordered)]
    return bool((changes[0] == changes[1]).all())
