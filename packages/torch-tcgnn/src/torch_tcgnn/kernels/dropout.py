"""Which attention weights dropout keeps: a hash of (seed, edge, head), so that no mask is ever stored.

The number at position ``n = edge · heads + head`` is the ``n``-th output of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014)
started at ``seed``; its upper 24 bits are compared with ``dropout · 2²⁴``. Forward and both backward passes, CPU and GPU
(:mod:`.triton.attention.parts` says the same in Triton) therefore draw one mask. Integer arithmetic is modulo 2⁶⁴.
"""

from __future__ import annotations

import torch
from torch import Tensor

GAMMA = 0x9E3779B97F4A7C15 - 2**64
"""Step of the sequence (2⁶⁴ over the golden ratio), as a signed number."""
FIRST = 0xBF58476D1CE4E5B9 - 2**64
SECOND = 0x94D049BB133111EB - 2**64
BITS = 24


def threshold(dropout: float) -> int:
    """Numbers below this one are dropped."""
    return round(dropout * 2**BITS)


def keep_scale(dropout: float) -> float:
    """Factor of the weights that stay: keeps the expectation; 0 where nothing stays."""
    return 1.0 / (1.0 - dropout) if dropout < 1.0 else 0.0


def keep_mask(seed: Tensor, edge: Tensor, heads: int, dropout: float) -> Tensor:
    """``[len(edge), heads]`` bool for input edge numbers ``edge``; ``seed`` is one int64."""
    place = edge.long().unsqueeze(1) * heads + torch.arange(heads, device=edge.device)
    z = place.add_(1).mul_(GAMMA).add_(seed)
    z ^= (z >> 30) & (2**34 - 1)
    z *= FIRST
    z ^= (z >> 27) & (2**37 - 1)
    z *= SECOND
    z >>= 64 - BITS
    return z.bitwise_and_(2**BITS - 1) >= threshold(dropout)


def dropped(weight: Tensor, seed: Tensor, edge: Tensor, dropout: float) -> Tensor:
    """``[len(edge), heads]`` attention weights after dropout."""
    if dropout == 0.0:
        return weight
    keep = keep_mask(seed, edge, weight.shape[1], dropout)
    return torch.where(keep, weight * keep_scale(dropout), 0.0)
