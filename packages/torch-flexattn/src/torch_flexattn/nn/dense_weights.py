"""The softmax itself, dense: for those who want to look at it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..mods import MaskMod, ScoreMod
from .given_masks import Table

MINUS_INFINITY = float("-inf")


def attention_weights(
    q: Tensor,
    k: Tensor,
    tables: Mapping[Table, Tensor],
    causal: bool,
    mask: MaskMod | None,
    score: ScoreMod | None,
    others: int,
) -> Tensor:
    """``softmax_j(score_mod(<q, k> / √E))`` over what is visible, ``[B, H, L, S]``; rows that see nothing are 0.

    Args:
        q: ``[B, H, L, E]``.
        k: ``[B, H, S, E]``.
        tables: as of :func:`given_masks.as_mods`.
        causal: likewise.
        mask: likewise.
        score: likewise.
        others: so many keys at the end are visible to all, whatever the masks say.
    """
    batch, heads, rows, width = q.shape
    columns = k.shape[2] - others
    products = (q * width**-0.5) @ k.mT
    scores, of_others = products.float() if products.dtype != torch.float64 else products, None
    if others:
        scores, of_others = scores[..., :columns], scores[..., columns:]
    b, h, i, j = (
        torch.arange(n, dtype=torch.int32, device=q.device).view([-1 if d == own else 1 for d in range(4)])
        for own, n in enumerate((batch, heads, rows, columns))
    )
    seen = torch.ones_like(scores, dtype=torch.bool)
    added: list[Tensor] = []
    if causal:
        seen = seen & (i >= j)
    if mask is not None:
        seen = seen & mask(b, h, i, j)
    for name, table in tables.items():
        shape = (batch, 1, 1, columns) if name == "padding" else (1 if name == "pairs" else batch, -1, rows, columns)
        placed = table.view(shape)
        seen = seen & (~placed if placed.dtype == torch.bool else placed.detach() != MINUS_INFINITY)
        if placed.dtype != torch.bool:
            added.append(placed)
    if score is not None:  # of what is hidden it sees 0, so that no infinity of a hidden key reaches a gradient
        scores = score(torch.where(seen, scores, 0), b, h, i, j).to(scores.dtype)
    for table in added:
        scores = scores + table
    scores = torch.where(seen, scores, MINUS_INFINITY)
    if of_others is not None:
        scores, seen = torch.cat([scores, of_others], -1), pad(seen, (0, others), value=True)
    if not scores.shape[-1]:
        return scores.to(products.dtype)
    top = scores.detach().amax(-1, keepdim=True)
    weights = torch.where(seen, (scores - torch.where(top == MINUS_INFINITY, 0, top)).exp(), 0)
    total = weights.sum(-1, keepdim=True)
    return (weights / torch.where(total == 0, 1, total)).to(products.dtype)
