"""The forward pass of torchtitan's attention modules, without torchtitan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from .attention import attention


class InnerAttention:
    """What torchtitan's ``FlexAttention`` computes, by torch-flexattn; a base of modules that have two attributes.

    Attributes:
        kernel_options: of torch-flexattn's kernels.
        backend: of ``flex_attention``.

    Example:
        >>> import torch
        >>> from torch_flexattn import masks
        >>> class Inner(InnerAttention, torch.nn.Module):
        ...     kernel_options, backend = {}, "auto"
        >>> q = torch.randn(5, 2, 8)
        >>> Inner()(q, q, q, attention_masks=masks.causal()).shape
        torch.Size([5, 2, 8])

    Reference:
        torchtitan, ``torchtitan.models.common.attention.FlexAttention``.
    """

    kernel_options: Mapping[str, Any]
    backend: str

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        /,
        *,
        attention_masks: Any,
        score_mod: Callable[..., Any] | None = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        out_transform: Callable[[Tensor, Tensor], Tensor] | None = None,
        **others: Any,
    ) -> Tensor:
        """Attention; arguments as :func:`~torch_flexattn_torchtitan.attention`.

        Args:
            q: ``[T, Nq, H]``, or ``[B, L, Nq, H]``.
            k: ``[T, Nkv, H]``, or ``[B, L, Nkv, H]``.
            v: ``[T, Nkv, Hv]``, or ``[B, L, Nkv, Hv]``.
            attention_masks: the layer's mask.
            score_mod: score modification.
            scale: of the products.
            enable_gqa: allow heads to be grouped.
            out_transform: what is called with output and ``lse`` and gives the output, as GPT-OSS does for its sinks.
            others: what other attentions of torchtitan need.

        Returns:
            ``[T, Nq, Hv]``, or ``[B, L, Nq, Hv]``, or what ``out_transform`` gave.
        """
        out, lse = self.attend(
            q, k, v, attention_masks=attention_masks, score_mod=score_mod, scale=scale, enable_gqa=enable_gqa
        )
        return out if out_transform is None else out_transform(out, lse)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        """Output and ``lse``."""
        return attention(q, k, v, kernel_options=self.kernel_options, backend=self.backend, **options)
