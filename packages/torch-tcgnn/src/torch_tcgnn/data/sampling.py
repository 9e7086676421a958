"""Drawing an exact number of distinct pairs of nodes, whole tensors at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..graph_arguments import check_count, is_count
from .undirected import from_keys

_MAX_ROUNDS = 100


def generator(seed: int, device: torch.device | str) -> torch.Generator:
    """A random generator of its own; the same seed on the same kind of device draws the same numbers."""
    if not is_count(seed):
        raise TypeError(f"seed must be an integer, got {seed!r}")
    return torch.Generator(device=device).manual_seed(seed)


def distinct(draw: Callable[[int], Tensor], count: int, rng: torch.Generator) -> Tensor:
    """Draw until ``count`` distinct keys are there.

    Args:
        draw: gives about as many valid int64 keys as asked for, with repetitions.
        count: how many distinct ones.
        rng: decides which are dropped when a round brings too many.

    Returns:
        ``[count]`` int64, ascending.

    Raises:
        ValueError: when the draws stop bringing new keys.
    """
    keys = torch.empty(0, dtype=torch.int64, device=rng.device)
    for _ in range(_MAX_ROUNDS):
        missing = count - keys.shape[0]
        if missing <= 0:
            break
        keys = torch.unique(torch.cat([keys, draw(missing + missing // 4 + 64)]))
    if keys.shape[0] < count:
        raise ValueError(f"cannot find {count} distinct edges, only {keys.shape[0]}: ask for fewer edges or more nodes")
    if keys.shape[0] > count:
        kept = torch.randperm(keys.shape[0], generator=rng, device=rng.device)[:count]
        keys = keys[kept].sort()[0]
    return keys


def subset(total: int, count: int, rng: torch.Generator) -> Tensor:
    """``[count]`` distinct int64 out of ``range(total)``; sparse choices cost no memory of ``total``."""
    if count > total:
        raise ValueError(f"cannot choose {count} distinct edges out of {total}")
    if count > total // 2:
        return torch.randperm(total, generator=rng, device=rng.device)[:count]
    return distinct(lambda k: torch.randint(total, (k,), generator=rng, device=rng.device), count, rng)


def both_ways(first: Tensor, second: Tensor, num_nodes: int) -> Tensor:
    """``[2, 2·pairs]``: each unordered pair as two edges, sorted by target, then source."""
    key = torch.cat([first * num_nodes + second, second * num_nodes + first])
    return from_keys(key.sort()[0], num_nodes)


def half(num_edges: int, num_nodes: int) -> int:
    """Unordered pairs of ``num_edges`` directed entries; an odd entry is dropped.

    Raises:
        TypeError: counts that are no integers.
        ValueError: more entries than a simple graph of ``num_nodes`` nodes has.
    """
    check_count("num_nodes", num_nodes, least=0)
    if not is_count(num_edges):
        raise TypeError(f"num_edges must be an integer, got {num_edges!r}")
    if num_edges < 0 or num_edges > num_nodes * (num_nodes - 1):
        limit = num_nodes * (num_nodes - 1)
        raise ValueError(f"num_edges must lie in [0, {limit}] for {num_nodes} nodes, got {num_edges}")
    return num_edges // 2
