"""Attention of tensors that lie as torchtitan's do: tokens before heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.nn.attention import flex_attention as theirs
from torch_flexattn import BlockMask, KernelOptions, MaskMod, flex_attention

from .block_masks import seen


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attention_masks: theirs.BlockMask | BlockMask | MaskMod | Callable[..., Any],
    score_mod: Callable[..., Any] | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    kernel_options: KernelOptions | Mapping[str, Any] | None = None,
    backend: Any = "auto",
) -> tuple[Tensor, Tensor]:
    """Attention by ``flex_attention``, in one of torchtitan's two layouts.

    Args:
        q: ``[T, Nq, H]``, packed tokens, or ``[B, L, Nq, H]``.
        k: ``[T, Nkv, H]``, or ``[B, L, Nkv, H]``.
        v: ``[T, Nkv, Hv]``, or ``[B, L, Nkv, Hv]``.
        attention_masks: the layer's mask: what torchtitan builds, or one of torch-flexattn's.
        score_mod: ``(score, b, h, q_idx, kv_idx) -> score``.
        scale: of the products; default ``1/√H``.
        enable_gqa: allow ``Nq`` to be a multiple of ``Nkv``.
        kernel_options: of torch-flexattn's kernels.
        backend: of ``flex_attention``.

    Returns:
        ``[T, Nq, Hv]`` and the logarithms of the sums of the softmax, float32 ``[T, Nq]``; or ``[B, L, …]`` of both.

    Raises:
        KindError: a mask that is none: nothing, or masks of several layers.
        UnsupportedError: a mask that lists blocks without a function, under ``torch.compile``.

    Example:
        >>> import torch
        >>> from torch_flexattn import masks
        >>> q, k, v = torch.randn(5, 4, 8), torch.randn(5, 2, 8), torch.randn(5, 2, 8)
        >>> out, lse = attention(q, k, v, attention_masks=masks.causal(), enable_gqa=True)
        >>> out.shape, lse.shape
        (torch.Size([5, 4, 8]), torch.Size([5, 4]))

    Reference:
        torchtitan, ``torchtitan.models.common.attention.FlexAttention``.
    """
    packed = q.dim() == 3
    if packed:
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
    out, lse = flex_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        score_mod=score_mod,
        block_mask=seen(attention_masks),
        scale=scale,
        enable_gqa=enable_gqa,
        return_lse=True,
        kernel_options=kernel_options,
        backend=backend,
    )
    out, lse = out.transpose(1, 2), lse.transpose(1, 2)
    return (out.squeeze(0), lse.squeeze(0)) if packed else (out, lse)
