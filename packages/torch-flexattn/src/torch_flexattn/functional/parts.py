"""Calls on tensors that are no plain ones: jagged nested tensors, and distributed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.nn.attention import flex_attention as theirs

from ..block_mask import BlockMask
from ..boolean import and_masks
from ..errors import UnsupportedError
from . import jagged, sharded


def of_parts(
    whole: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any,
    masks: tuple[Any, Any],
    others: Mapping[str, Any],
    *,
    q_offset: Any,
    kv_lens: Any,
    seed: Any,
    **options: Any,
) -> Any:
    """The same call on what nested or distributed tensors are made of.

    Args:
        whole: attention of plain tensors.
        query: the queries.
        key: the keys.
        value: the values.
        score_mod: of the call, as are all others.
        masks: ``block_mask`` and ``mask_mod``.
        others: arguments that go with plain tensors alone, and must not be given.

    Raises:
        UnsupportedError: one of those; a block mask, or one of ``q_offset`` and ``kv_lens``, for nested tensors.
    """
    ranks = any(map(sharded.is_distributed, (query, key, value)))
    refused = dict(others) if ranks else {**others, "q_offset": q_offset, "kv_lens": kv_lens}
    for name, given in refused.items():
        if given is not None:
            kind = "DTensors" if ranks else "nested tensors"
            raise UnsupportedError(f"{name} must be left out for {kind}, got {type(given).__name__}")
    if ranks:
        return sharded.attend(whole, query, key, value, score_mod, masks, q_offset=q_offset, kv_lens=kv_lens, **options)
    if isinstance(masks[0], BlockMask | theirs.BlockMask):
        raise UnsupportedError("block_mask must be a mask for nested tensors, whose lengths differ, got blocks")
    from .varlen import flex_attention_varlen

    given = [m for m in masks if m is not None]
    mask = and_masks(*given) if given else None
    return jagged.attend(
        flex_attention_varlen, query, key, value, score_mod=score_mod, mask_mod=mask, seed=seed, **options
    )
