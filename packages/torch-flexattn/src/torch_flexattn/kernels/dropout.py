"""Which softmax weights dropout keeps: drawn from ``(seed, b, h, i, j)``, so that no mask is stored and tiles are free.

Philox4x32-10 (Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, SC 2011; fewer rounds showed in the mean
over neighbouring seeds). The key is the seed's low and high 32 bits, the counter ``(j // 4, i, h, b)`` with the indices
that mods see; word ``j % 4`` of the four results, read as unsigned, keeps the weight unless it is below
:func:`threshold`. A kernel for another device that does the same integer arithmetic drops the same weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF
WORDS = 4
"""Numbers that one counter gives: those of four neighbouring keys."""


def threshold(dropout: float) -> int:
    """Words below this one drop their weight: a share of ``dropout``."""
    return min(round(dropout * 2**32), WORD)


def keep(seed: int | Tensor, b: Tensor, h: Tensor, q: Tensor, start: int, stop: int, dropout: float) -> Tensor:
    """Where the weights of keys ``start`` to ``stop`` stay.

    Args:
        seed: of the call; its low 64 bits count. A tensor of one int64 ``[]`` is read where it lies.
        b: batch entries; with ``h`` and ``q`` of shapes that broadcast, the last dimension of size 1.
        h: query heads.
        q: queries.
        start: first key.
        stop: end of the keys.
        dropout: share of the weights that is dropped.

    Returns:
        bool, of the shape that ``b``, ``h``, ``q`` broadcast to, the last dimension replaced by ``stop − start``.
    """
    first = start // WORDS
    quads = torch.arange(first, -(-stop // WORDS), device=q.device)
    limit = threshold(dropout)
    seed = seed.to(q.device).reshape(()) if isinstance(seed, Tensor) else seed
    kept = [word >= limit for word in philox(seed, (quads, q.long(), h.long(), b.long()))]
    skipped = start - first * WORDS
    return torch.stack(torch.broadcast_tensors(*kept), -1).flatten(-2)[..., skipped : skipped + stop - start]


def philox(seed: int | Tensor, counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four words of every counter: int64 numbers of 32 bits, in shapes that broadcast to that of the counters.

    Products of two words are taken modulo 2⁶⁴, so that int64 holds their bits.
    """
    a, b, c, d = counter
    low, high = seed & WORD, seed >> 32 & WORD
    for _ in range(ROUNDS):
        first, second = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b = _high(second) ^ (b ^ low), second & WORD
        c, d = _high(first) ^ (d ^ high), first & WORD
        low, high = low + KEY_STEPS[0] & WORD, high + KEY_STEPS[1] & WORD
    return a, b, c, d


def _high(product: Tensor) -> Tensor:
    return (product >> 32).bitwise_and_(WORD)
