"""What a case amounts to: operations of its matrix products, bytes that decoding has to read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..build import create_block_mask
from ..flops import pair_flops
from .task import Task


@dataclass(frozen=True)
class Work:
    """Of one call.

    Attributes:
        flops: two for every number that is multiplied and added, of pairs that are visible.
        bytes: of visible keys and values, each once, of queries and results; 0: not counted, of passes that are not
            bound by memory.
    """

    flops: int
    bytes: int = 0

    def rates(self, ms: float) -> dict[str, float]:
        """By a time: ``flops_per_s``, and ``bytes_per_s`` where bytes are counted."""
        found = {"flops_per_s": self.flops / ms * 1e3}
        return found | ({"bytes_per_s": self.bytes / ms * 1e3} if self.bytes else {})


def work_of(task: Task) -> Work:
    """Of a call of attention; finding how many pairs are visible takes a moment."""
    case = task.case
    pairs = visible_pairs(task)
    flops = pairs * case.batch * case.heads * pair_flops(case.width, case.width, backward=case.backward)
    if case.queries != 1 or case.backward:
        return Work(flops)
    numbers = 2 * case.batch * case.width * (pairs * case.kv_heads + case.heads)
    return Work(flops, numbers * task.q.element_size())


def visible_pairs(task: Task) -> int:
    """Pairs of a query and a key that see each other, of one head and batch entry: here all are alike."""
    case, of = task.case, task.variant
    if of.mask is None or of.plain_mask is None:
        return case.queries * case.keys
    if case.queries == case.keys:
        return create_block_mask(of.mask, None, None, case.queries, case.keys, device=task.q.device).visible_pairs()
    i = torch.arange(case.queries, device=task.q.device)[:, None] + task.offset
    j = torch.arange(case.keys, device=task.q.device)
    zero = torch.zeros((), dtype=torch.long, device=task.q.device)
    return int(of.plain_mask(zero, zero, i, j).sum())
