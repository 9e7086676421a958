"""Attention over all keys from attention over parts of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import InputError


def merge_attention(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """``Σ_r exp(lse_r − lse) · out_r``, with ``lse`` the logarithm of the sum of all exponentials.

    Args:
        parts: ``out`` ``[..., Ev]`` and ``lse`` ``[...]`` of each part, from :func:`flex_attention`. One with ``lse``
            −inf contributes nothing, whatever its ``out``.

    Returns:
        ``out``, in the type of the parts, and ``lse`` of the whole. Differentiable in both.

    Raises:
        InputError: no part, or shapes that differ.

    Example:
        >>> import torch
        >>> from torch_flexattn import flex_attention, merge_attention
        >>> q, k, v = (torch.randn(1, 2, 4, 8) for _ in range(3))
        >>> parts = [flex_attention(q, k[:, :, s], v[:, :, s], return_lse=True) for s in (slice(1), slice(1, 4))]
        >>> torch.allclose(merge_attention(parts)[0], flex_attention(q, k, v), atol=1e-6)
        True

    Reference:
        FlashAttention-2 (Dao, 2023), section 3; FlexAttention (MLSys 2025), section 4.3.
    """
    parts = list(parts)
    shapes = {(tuple(out.shape), tuple(lse.shape)) for out, lse in parts}
    if len(shapes) != 1 or any(out[:-1] != lse for out, lse in shapes):
        raise InputError(f"parts must be pairs (out [..., Ev], lse [...]) of one shape, got {sorted(shapes)}")
    outs, lses = (torch.stack(of) for of in zip(*parts))
    top = lses.detach().amax(0)
    top = top.masked_fill(top == float("-inf"), 0)
    seen = lses != float("-inf")
    weight = torch.where(seen, (lses - top).exp(), 0)
    total = weight.sum(0)
    empty = total == 0
    share = (weight / total.masked_fill(empty, 1)).unsqueeze(-1)
    out = (share * torch.where(seen.unsqueeze(-1), outs, 0)).sum(0)
    return out.to(parts[0][0].dtype), torch.where(empty, float("-inf"), total.masked_fill(empty, 1).log() + top)
