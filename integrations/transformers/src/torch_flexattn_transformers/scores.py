"""What transformers adds to scores: a soft cap, biases of positions, masks of numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch_flexattn import InputError, ScoreMod, score_mod, scores

Read = Callable[..., Tensor]

_caps: dict[float, ScoreMod] = {}
"""A model has one or two; a compiled graph reads them here and does not record them anew."""


def score_of(softcap: float | None, reads: tuple[Read, ...]) -> ScoreMod | None:
    """A soft cap, then the sum with what each of ``reads`` gives; ``None`` where there is nothing to do."""
    cap = None if softcap is None else capped(float(softcap))
    if not reads:
        return cap

    def added(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        for read in reads:
            score = score + read(b, h, q_idx, kv_idx)
        return score

    return score_mod(added) if cap is None else cap.then(added)


def capped(softcap: float) -> ScoreMod:
    """``softcap · tanh(s / softcap)``, recorded once."""
    found = _caps.get(softcap)
    return record(softcap) if found is None else found


@torch.compiler.disable()
def record(softcap: float) -> ScoreMod:
    """The cap, kept for next time; outside of a graph that is being compiled."""
    return _caps.setdefault(softcap, scores.softcap(softcap))


def reader(name: str, table: Tensor, q_offset: int | Tensor = 0) -> Read:
    """A function ``(b, h, q_idx, kv_idx)`` that reads ``table`` where the first row is query ``q_offset``.

    What has the size 1 is the same for all.

    Raises:
        InputError: not four dimensions.
    """
    if table.dim() != 4:
        raise InputError(f"{name} must have shape [batch, heads, queries, keys], got {tuple(table.shape)}")
    varies = tuple(size != 1 for size in table.shape)
    held = table.squeeze()
    if not any(varies):
        return lambda b, h, q_idx, kv_idx: held
    row = row_of(q_offset)

    def read(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        places = (b, h, row(b, q_idx), kv_idx)
        return held[tuple(place for place, differs in zip(places, varies, strict=True) if differs)]

    return read


def row_of(q_offset: int | Tensor) -> Read:
    """The row of a table that belongs to a query."""
    if isinstance(q_offset, Tensor):
        return lambda b, q_idx: q_idx - q_offset[b]
    if q_offset == 0:
        return lambda b, q_idx: q_idx
    return lambda b, q_idx: q_idx - q_offset
