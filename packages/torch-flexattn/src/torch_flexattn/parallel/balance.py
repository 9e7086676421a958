"""Rows of blocks over ranks, so that all ranks hold equally many and have about equally much to do.

Longest first: the costliest row goes to the rank with the least to do so far (Graham, *Bounds on multiprocessing timing
anomalies*, 1969), among those that have room.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def longest_first(costs: Sequence[float], world: int) -> list[list[int]]:
    """The rows of each rank, ascending; ``len(costs) / world`` of them each.

    Args:
        costs: of each row.
        world: ranks; it divides the number of rows.
    """
    room = len(costs) // world
    rows: list[list[int]] = [[] for _ in range(world)]
    open_ranks = [(0.0, rank) for rank in range(world)]
    for row in sorted(range(len(costs)), key=lambda row: -costs[row]):
        load, rank = heapq.heappop(open_ranks)
        rows[rank].append(row)
        if len(rows[rank]) < room:
            heapq.heappush(open_ranks, (load + costs[row], rank))
    return [sorted(own) for own in rows]
