"""The function that layers of transformers call for attention."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from torch_flexattn import MaskMod, UnsupportedError, flex_attention, mask_mod, masks

from .model_mask import CAUSAL, ModelMask
from .scores import Read, reader, score_of

REFUSED = {
    "sinks": "sinks of single queries; s_aux has one a head",
    "indices": "keys chosen by an indexer",
    "block_indices": "blocks of keys chosen by an indexer",
}
"""Options of few models that other implementations pass over at the cost of another result."""


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: ModelMask | BlockMask | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of a layer, by ``flex_attention``. Key heads are never repeated.

    Args:
        module: the layer; says whether it trains and, without a mask, whether it is causal.
        query: ``[B, Hq, L, E]``.
        key: ``[B, Hkv, S, E]``, where ``Hkv`` divides ``Hq``.
        value: ``[B, Hkv, S, Ev]``.
        attention_mask: what :func:`mask` made; a PyTorch ``BlockMask``; bools, True where visible, or numbers that are
            added to scores, ``[B, Hq, L, at least S]``, each of which may be 1. ``None``: as in SDPA, nothing is hidden
            from one query, nor where the layer is not causal.
        dropout: share of the softmax that is dropped while the layer trains.
        scaling: of the products; default ``1/√E``.
        softcap: scores become ``softcap · tanh(s / softcap)``.
        s_aux: ``[Hq]``: a further score in each softmax (attention sink).
        position_bias: of such a shape, added to scores after the cap. Gradients reach it.
        is_causal: instead of what ``module`` says.
        sliding_window: keys that a query sees, where it is causal and there is no mask; a mask holds its own.
        others: what other implementations need.

    Returns:
        ``[B, L, Hq, Ev]``, and ``None`` for the weights, which are never made.

    Raises:
        UnsupportedError: an option of `REFUSED`, which would change the result.
        InputError: a mask or bias without four dimensions.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(1, 6, 5, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
        >>> attention(torch.nn.Module(), q, k, v, None, is_causal=True)[0].shape
        torch.Size([1, 5, 6, 8])

    Reference:
        transformers, ``AttentionInterface``.
    """
    for name, meaning in REFUSED.items():
        if others.get(name) is not None:
            raise UnsupportedError(f'{name} ({meaning}) are not supported: use attn_implementation="eager"')
    if others.get("output_attentions"):
        warnings.warn(
            'attention weights are never made: output_attentions needs attn_implementation="eager"', stacklevel=2
        )
    reads: tuple[Read, ...] = ()
    q_offset: int | Tensor = 0
    seen: BlockMask | MaskMod | None = None
    if isinstance(attention_mask, ModelMask):
        seen, q_offset = attention_mask.mod, attention_mask.q_offset
    elif isinstance(attention_mask, Tensor):
        read = reader("attention_mask", attention_mask)
        if attention_mask.dtype == torch.bool:
            seen = mask_mod(read)
        else:
            reads = (read,)
    elif attention_mask is not None:
        seen = attention_mask
    elif query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        seen = CAUSAL if sliding_window is None else window(sliding_window)
    if position_bias is not None:
        reads = (reader("position_bias", position_bias, q_offset), *reads)
    out = flex_attention(
        query,
        key,
        value,
        score_mod=score_of(softcap, reads),
        block_mask=seen,
        scale=scaling,
        enable_gqa=True,
        q_offset=q_offset,
        sinks=s_aux,
        dropout_p=dropout if module.training else 0.0,
    )
    return out.transpose(1, 2).contiguous(), None


@functools.lru_cache(maxsize=64)
def window(width: int) -> MaskMod:
    """The last ``width`` keys up to the query's own."""
    return masks.sliding_window(width)
