"""A score modification that multiplies vectors, as further features of queries and keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from attn_gym import mods as theirs
from torch import Tensor
from torch_flexattn import InputError, KindError

from .made_by import code_in, code_of, values_in

ROPE = code_in(theirs.generate_mla_rope_score_mod, "mla_rope_score_mod")


def rope_as_features(
    mod: Callable[..., Any], query: Tensor, key: Tensor, scale: float | None = None
) -> tuple[Tensor, Tensor, float]:
    """Queries and keys whose scores are those that ``generate_mla_rope_score_mod`` makes of the given ones.

    It adds a product of two vectors to a score. So does attention itself, if they stand behind queries and keys. ::

        query, key, scale = rope_as_features(mod, query, key)
        flex_attention(query, key, value, scale=scale, enable_gqa=True)

    Args:
        mod: what that factory returned; holds ``query_rope`` ``[B, Hq, L, R]`` and ``key_rope`` ``[B, n, S, R]``.
        query: ``[B, Hq, L, E]``.
        key: ``[B, Hkv, S, E]``.
        scale: of the products of ``query`` and ``key``; default ``1/√E``.

    Returns:
        ``[B, Hq, L, E + R]``, ``[B, Hkv, S, E + R]``, and the scale to call with. Gradients reach all four tensors.

    Raises:
        InputError: query heads of one key head that read different vectors.
        KindError: a function that another factory made.

    Example:
        >>> rope = theirs.generate_mla_rope_score_mod(torch.ones(1, 4, 2, 3), torch.ones(1, 1, 2, 3), num_heads=4)
        >>> query, key, scale = rope_as_features(rope, torch.ones(1, 4, 2, 8), torch.ones(1, 1, 2, 8))
        >>> query.shape, key.shape, round(scale, 3)
        (torch.Size([1, 4, 2, 11]), torch.Size([1, 1, 2, 11]), 0.354)

    Reference:
        DeepSeek-V2 (2024), section 2.1.3.
    """
    if code_of(mod) is not ROPE:
        raise KindError(f"mod must be made by generate_mla_rope_score_mod, got {mod!r}")
    values = values_in(mod)
    shared, group = values["num_heads"], query.shape[1] // key.shape[1]
    if shared % group:
        raise InputError(f"num_heads={shared} of mod must be a multiple of the {group} query heads of a key head")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    head = torch.arange(key.shape[1], device=key.device) * group // shared
    of_query = values["query_rope"] * (values["scale"] / scale)
    of_key = values["key_rope"][:, head]
    return torch.cat([query, of_query.to(query.dtype)], -1), torch.cat([key, of_key.to(key.dtype)], -1), scale
