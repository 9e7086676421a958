"""``quantize_fp8``, and what a call has to say of features in 8 bits: their factors, and that they are not trained."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError, KindError, UnsupportedError
from ..fp8 import FP8, LARGEST, NO_GRADIENT, rounded_to_fp8


def quantize_fp8(x: Tensor, descale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A tensor of features in 8 bits (e4m3), with a factor for each of its heads.

    ``x ≈ stored · descale``. By default the largest number of a head becomes 448, the largest of the format.
    e4m3 is a floating-point format: numbers down to 1/28,672 of the largest are rounded by 1/16 of themselves at most.

    Args:
        x: ``[B, H, L, D]``, of 16, 32 or 64 bits.
        descale: float32 ``[B, H]``, or ``[H]``, or one number as a tensor: fixed factors, say of earlier batches; what
            is more than 448 of them is cut off. Default: from the largest finite number of each head.

    Returns:
        float8_e4m3fn ``[B, H, L, D]``, and ``descale``: float32 ``[B, H]`` (or the one given): what
        :func:`flex_attention` takes as ``q_descale``, ``k_descale`` or ``v_descale``. NaN and infinities become NaN.

    Raises:
        KindError: ``x`` is no floating-point tensor of more than 8 bits; ``descale`` is not float32.
        InputError: ``x`` has another rank; ``descale`` has another shape or device.

    Example:
        >>> import torch
        >>> from torch_flexattn import flex_attention, quantize_fp8
        >>> q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
        >>> (q8, of_q), (k8, of_k), (v8, of_v) = map(quantize_fp8, (q, k, v))
        >>> flex_attention(q8, k8, v8, q_descale=of_q, k_descale=of_k, v_descale=of_v).dtype
        torch.bfloat16

    Reference:
        Micikevicius et al., FP8 Formats for Deep Learning (2022), section 3.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.element_size() == 1:
        raise KindError(f"x must be a tensor of 16, 32 or 64-bit floats, got {getattr(x, 'dtype', type(x).__name__)}")
    if x.dim() != 4:
        raise InputError(f"x must have shape [batch, heads, length, features], got {tuple(x.shape)}")
    x = x.detach()
    if descale is None:
        descale = x.new_ones(x.shape[:2], dtype=torch.float32)
        if x.numel():
            size = x.abs().float()
            largest = size.where(size.isfinite(), 0).amax((2, 3))
            descale = torch.where(largest > 0, largest / LARGEST, 1)
    of_head = by_head("descale", descale, x, (x.shape[1],))
    return rounded_to_fp8(x, of_head[..., None, None]), descale


def descales_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_descale: Tensor | None,
    k_descale: Tensor | None,
    v_descale: Tensor | None,
) -> Tensor | None:
    """The factors of products and of values, float32 ``[2, B, Hq]``; ``None``: there are none.

    Raises:
        KindError: no float32 tensor.
        InputError: another shape or device; features that are not of 8 bits.
    """
    named = (("q_descale", q_descale, q), ("k_descale", k_descale, k), ("v_descale", v_descale, v))
    for name, given, t in named:
        if given is not None and t.dtype != FP8:
            raise InputError(f"{name} is for 8-bit features, {FP8}, but they are {t.dtype}")
    if q_descale is None and k_descale is None and v_descale is None:
        return None
    (batch, heads), kv_heads = q.shape[:2], k.shape[1]
    factors = []
    for name, given, t in named:
        if given is None:
            factors.append(q.new_ones(1, 1, dtype=torch.float32))
            continue
        own = by_head(name, given, t, (heads, kv_heads) if t is q else (kv_heads,))
        if own.shape[1] not in (1, heads):
            own = own.unsqueeze(2).expand(-1, -1, heads // kv_heads).flatten(1)
        factors.append(own)
    of_q, of_k, of_v = factors
    return torch.stack([(of_q * of_k).expand(batch, heads), of_v.expand(batch, heads)])


def by_head(name: str, value: Tensor, t: Tensor, heads: tuple[int, ...]) -> Tensor:
    """Factors as ``[B or 1, heads or 1]``.

    Raises:
        KindError: no float32 tensor.
        InputError: another shape or device.
    """
    if not isinstance(value, Tensor) or value.dtype != torch.float32:
        raise KindError(f"{name} must be a float32 tensor, got {getattr(value, 'dtype', type(value).__name__)}")
    if value.device != t.device:
        raise InputError(f"{name} is on {value.device}, but what it scales is on {t.device}")
    shape = tuple(value.shape)
    if value.dim() > 2 or (shape and shape[-1] not in heads) or (len(shape) == 2 and shape[0] not in (1, t.shape[0])):
        allowed = " or ".join(map(str, dict.fromkeys(heads)))
        raise InputError(f"{name} must have shape [{t.shape[0]}, {allowed}], [{allowed}] or [], got {shape}")
    return value.detach().reshape(1, -1) if value.dim() < 2 else value.detach()


def check_forward_only(k: Tensor, *inputs: Tensor | None) -> None:
    """Raise where attention over 8-bit keys would have to be differentiated.

    Raises:
        UnsupportedError: one of ``inputs`` needs a gradient.
    """
    if k.dtype != FP8 or not torch.is_grad_enabled() or not any(t is not None and t.requires_grad for t in inputs):
        return
    raise UnsupportedError(NO_GRADIENT)
