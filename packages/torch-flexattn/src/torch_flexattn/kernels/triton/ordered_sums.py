"""Gradients of captured tensors whose bits do not depend on the order of additions.

Where a tensor is read at another place for every query and key (``bias[b, h, q_idx, kv_idx]``), a place gets one
addition a launch, and launches follow each other: as many as there are batch entries or heads that share places. All
other gradients are sums of integers, which commute (``exact_sums``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ...differentiate import Derivative
from . import exact_sums
from .distinct import distinct

Planes = tuple[int, int, int]
"""Of batch entries and heads of keys, numbered together: the first, the step, and how many."""


class OrderedSums:
    """The sums of one backward pass.

    Attributes:
        exact: captured tensors whose gradients are summed in integers.
    """

    def __init__(self, derivative: Derivative | None, results: list[Tensor | None], queries: int, keys: int) -> None:
        """``results``: float32, contiguous, one for each captured tensor that gets a gradient; they are filled."""
        numbers = sorted({s.capture for s in derivative.scatters}) if derivative is not None else []
        self._results = {n: of for n in numbers if (of := results[n]) is not None}
        self._apart = {"b", "h"}
        found: set[int] = set()
        for number, of in self._results.items():
            known = None if derivative is None else distinct(derivative, number)
            if known is not None and known.holds(tuple(of.shape), queries, keys):
                self._apart &= known.apart
            else:
                found.add(number)
        self.exact = frozenset(found)

    def planes(self, batch: int, kv_heads: int, heads: int) -> list[Planes]:
        """What each launch computes, in order."""
        of_batch = batch == 1 or "b" in self._apart
        of_head = heads == 1 or "h" in self._apart
        if of_batch and of_head:
            return [(0, 1, batch * kv_heads)]
        if of_batch:
            return [(h, kv_heads, batch) for h in range(kv_heads)]
        if of_head:
            return [(b * kv_heads, 1, kv_heads) for b in range(batch)]
        return [(n, 1, 1) for n in range(batch * kv_heads)]

    def passes(self) -> Iterator[list[Any]]:
        """Arguments for the gradients of captured tensors: one pass, or several where integers would need much memory.

        A pass computes everything else anew; the next is asked for when all launches of it have been made.
        """
        room = exact_sums.MOST_BYTES // (8 * exact_sums.RECORD)
        longest = max((self._results[n].numel() for n in self.exact), default=0)
        for first in range(0, max(longest, 1), room):
            arguments: list[Any] = []
            made: list[tuple[Tensor, Tensor]] = []
            for number, of in self._results.items():
                if number not in self.exact:
                    arguments += [of.zero_(), *of.stride()]
                    continue
                part = of.view(-1)[first : first + room]
                made.append((part, exact_sums.zeros(max(part.numel(), 1), of.device)))
                arguments += [made[-1][1], *of.stride(), first, first + part.numel()]
            yield arguments
            for part, sums in made:
                part.copy_(exact_sums.rounded(sums)[: part.numel()])
