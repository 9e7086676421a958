"""Sums of float32 in integers: whatever the order in which numbers are added, the bits of the sum are the same.

A float32 is ``±fraction · 2^(place - 149)``, ``fraction`` below 2²⁴ and ``place`` from 0 to 253. A sum is kept as
12 integers of 64 bits, digit ``d`` counting units of ``2^(24 d - 149)``; a number is shifted to where it belongs and
its two halves of at most 24 bits are added to two neighbouring digits. Additions of integers are exact and commute, so
atomic ones, whose order is not known, give one result. A digit holds 2³⁹ additions. That is a long accumulator
(Kulisch, *Computer Arithmetic and Validity*, 2008), whose digits overlap so that nothing is carried until the end.
"""

from __future__ import annotations

import torch
from torch import Tensor

DIGITS = 12
BITS = 24
"""Of a digit, beside those that hold the sum of many."""
LEAST = -149
"""The smallest float32 is two to this power."""
RECORD = DIGITS + 1
"""Numbers of a sum: its digits, and how many of the numbers added to it were infinite or NaN."""
MOST_BYTES = 1 << 30
"""Of the sums of one captured tensor at a time; the sums of a larger one are made part by part."""


def addition(capture: int, at: str, value: str, inside: str, language: str, exact: bool) -> str:
    """The statement that adds ``value`` to the gradient of captured tensor ``capture``.

    Args:
        capture: its number.
        at: offsets in its gradient, contiguous; empty: it is one number.
        value: what is added.
        inside: where; empty: everywhere.
        language: ``"tl"`` or ``"gl"``.
        exact: whether the sum is one of integers; of the offsets from ``g…_first`` to before ``g…_stop``.
    """
    if not exact:
        address, bounds = f"g{capture}" + f" + {at}" * bool(at), f", mask={inside}" * bool(inside)
        return f'{language}.atomic_add({address}, {value}{bounds}, sem="relaxed")'
    place = f"({at or 0})"
    part = f"({place} >= g{capture}_first) & ({place} < g{capture}_stop)"
    part = f"{part} & {inside}" if inside else part
    return f"add_exactly(g{capture} + ({place} - g{capture}_first) * {RECORD}, {value}, {part})"


def zeros(count: int, device: torch.device) -> Tensor:
    """``count`` sums, int64 ``[count, RECORD]``."""
    return torch.zeros(count, RECORD, dtype=torch.int64, device=device)


def rounded(sums: Tensor) -> Tensor:
    """The sums in float32, ``[count]``; NaN where anything infinite or NaN was added."""
    total = torch.zeros(sums.shape[0], dtype=torch.float64, device=sums.device)
    for digit in range(DIGITS):  # the smallest first: each is far below the next
        total += sums[:, digit].double() * 2.0 ** (BITS * digit + LEAST)
    return total.masked_fill_(sums[:, DIGITS] != 0, float("nan")).float()
