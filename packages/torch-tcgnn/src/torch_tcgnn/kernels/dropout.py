"""Which attention weights dropout keeps: a hash of (seed, edge, head), so that no mask is ever stored.

The number at position ``n = edge · heads + head`` is the ``n``-th of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014)
started at ``seed``, without its last step, which leaves the upper 31 bits alone; read as a signed number it is compared
with a threshold. Forward and both backward passes, CPU and GPU (:mod:`.triton.attention` says the same in Triton)
therefore draw one mask. Integer arithmetic is modulo 2⁶⁴.
"""

from __future__ import annotations

import torch
from torch import Tensor

GAMMA = 0x9E3779B97F4A7C15 - 2**64
"""Step of the sequence (2⁶⁴ over the golden ratio), as a signed number."""
FIRST = 0xBF58476D1CE4E5B9 - 2**64
SECOND = 0x94D049BB133111EB - 2**64


def threshold(dropout: float) -> int:
    """Signed 64-bit numbers below this one are dropped: a share of ``dropout``."""
    return min(round(dropout * 2**64), 2**64 - 1) - 2**63


def keep_scale(dropout: float) -> float:
    """Factor of the weights that stay: keeps the expectation; 0 where nothing stays."""
    return 1.0 / (1.0 - dropout) if dropout < 1.0 else 0.0


def keep_mask(seed: Tensor, edge: Tensor, heads: int, dropout: float, *, head_major: bool = False) -> Tensor:
    """``[len(edge), heads]`` bool for input edge numbers ``edge``, or its transpose; ``seed`` is one int64."""
    at_edge = (edge.long() * _signed(heads * GAMMA)).add_(seed)
    of_head = torch.arange(1, heads + 1, device=edge.device).mul_(GAMMA)
    z = at_edge + of_head.unsqueeze(1) if head_major else at_edge.unsqueeze(1) + of_head
    for shift, factor in ((30, FIRST), (27, SECOND)):
        z.bitwise_xor_((z >> shift).bitwise_and_(2 ** (64 - shift) - 1)).mul_(factor)
    return z >= threshold(dropout)


def dropout_factor(
    seed: Tensor, edge: Tensor, heads: int, dropout: float, dtype: torch.dtype, *, head_major: bool = False
) -> Tensor | None:
    """Factor of each attention weight, shaped as :func:`keep_mask`: 0 or ``1/(1−p)``; ``None`` without dropout."""
    if dropout == 0.0:
        return None
    return keep_mask(seed, edge, heads, dropout, head_major=head_major).to(dtype).mul_(keep_scale(dropout))


def _signed(number: int) -> int:
    """The signed 64-bit integer that ``number`` wraps to."""
    return (number + 2**63) % 2**64 - 2**63
