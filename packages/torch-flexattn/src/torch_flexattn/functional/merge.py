"""Attention over all keys from attention over parts of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import InputError, KindError
from ..ops.merge import merge


def merge_attention(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """``Σ_r exp(lse_r − lse) · out_r``, with ``lse`` the logarithm of the sum of all exponentials.

    Args:
        parts: ``out`` ``[..., Ev]`` and ``lse`` ``[...]`` of each part, from :func:`flex_attention`. One with ``lse``
            −inf contributes nothing, whatever its ``out``.

    Returns:
        ``out``, in the type of the parts, and ``lse`` of the whole. Differentiable in both.

    Raises:
        InputError: no part, or shapes that differ.
        KindError: no pairs of tensors.

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
    for part in parts:
        if not isinstance(part, tuple | list) or [isinstance(t, Tensor) for t in part] != [True, True]:
            raise KindError(f"parts must be pairs (out, lse) of tensors, got {type(part).__name__} among them")
    fits = bool(parts) and all(o.shape == parts[0][0].shape and s.shape == o.shape[:-1] for o, s in parts)
    if not fits:  # shapes in a set would be fixed in a compiled graph
        shapes = sorted({(tuple(out.shape), tuple(lse.shape)) for out, lse in parts})
        raise InputError(f"parts must be pairs (out [..., Ev], lse [...]) of one shape, got {shapes}")
    devices = {str(t.device) for part in parts for t in part}
    if len(devices) != 1:
        raise InputError(f"parts must be on one device, got {', '.join(sorted(devices))}")
    (out, lse), *others = parts
    if not others:
        seen = lse != float("-inf")
        return torch.where(seen.unsqueeze(-1), out, 0), lse.clone()
    dtype = out.dtype
    if len(others) > 1:  # what is between parts is not rounded
        out = out.to(torch.promote_types(dtype, torch.float32))
    for other, other_lse in others:
        out, lse = merge(out, lse, other, other_lse)
    return out.to(dtype), lse
