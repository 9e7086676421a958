"""Masks and score modifications by name, once from this package's library and once as plain functions for others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import masks, scores
from ..errors import InputError
from ..mods import MaskMod, ScoreMod, score_mod

WINDOW = 256
PREFIX = 256
CAP = 20.0
DOCUMENTS = 12
T5_BUCKETS = 32


@dataclass(frozen=True, eq=False)
class Variant:
    """One modification in every form that a contender takes.

    Attributes:
        mask: ours.
        score: ours.
        plain_mask: the mask as a plain function of ``b, h, q_idx, kv_idx``.
        plain_score: likewise, of the score and these.
        learnt: tensors whose gradient is wanted.
        is_added: the score modification adds a bias, which may be handed over as a tensor.
        bounds: where documents begin and end, int32; ``None``: there are none.
    """

    mask: MaskMod | None = None
    score: ScoreMod | None = None
    plain_mask: Callable[..., Any] | None = None
    plain_score: Callable[..., Any] | None = None
    learnt: tuple[Tensor, ...] = ()
    is_added: bool = False
    bounds: Tensor | None = None


def variant(
    name: str, heads: int, length: int, device: torch.device, dtype: torch.dtype, documents: int = DOCUMENTS
) -> Variant:
    """The variant of a name, for queries and keys of ``length``.

    Raises:
        InputError: no such name.
    """
    if name == "document":
        return _document(length, device, documents)
    if name in _MASKS:
        return _MASKS[name](length, device)
    if name in _SCORES:
        return _SCORES[name](heads, length, device, dtype)
    raise InputError(f"mod must be one of {', '.join((*_MASKS, 'document', *_SCORES))}; got {name!r}")


def bounds_of(length: int, documents: int = DOCUMENTS) -> list[int]:
    """Where documents of uneven lengths begin and end, drawn from a fixed seed."""
    random = torch.Generator().manual_seed(0)
    cuts = torch.randperm(length - 1, generator=random)[: min(documents, length) - 1] + 1
    return [0, *sorted(cuts.tolist()), length]


def _noop(length: int, device: torch.device) -> Variant:
    return Variant()


def _causal(length: int, device: torch.device) -> Variant:
    return Variant(mask=masks.causal(), plain_mask=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)


def _window(length: int, device: torch.device) -> Variant:
    return Variant(
        mask=masks.sliding_window(WINDOW),
        plain_mask=lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx < WINDOW),
    )


def _prefix(length: int, device: torch.device) -> Variant:
    return Variant(
        mask=masks.prefix_lm(PREFIX), plain_mask=lambda b, h, q_idx, kv_idx: (kv_idx < PREFIX) | (q_idx >= kv_idx)
    )


def _document(length: int, device: torch.device, documents: int) -> Variant:
    bounds = torch.tensor(bounds_of(length, documents), dtype=torch.int32, device=device)
    number = torch.repeat_interleave(torch.arange(len(bounds) - 1, device=device), bounds.diff())
    return Variant(
        mask=masks.document(bounds, causal=True, total=length),
        plain_mask=lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (number[q_idx] == number[kv_idx]),
        bounds=bounds,
    )


def _alibi(heads: int, length: int, device: torch.device, dtype: torch.dtype) -> Variant:
    slopes = torch.tensor([2.0 ** (-8 * (n + 1) / heads) for n in range(heads)], device=device)
    return Variant(
        score=scores.alibi(slopes),
        plain_score=lambda score, b, h, q_idx, kv_idx: score - slopes[h] * (q_idx - kv_idx),
        is_added=True,
    )


def _softcap(heads: int, length: int, device: torch.device, dtype: torch.dtype) -> Variant:
    return Variant(
        score=scores.softcap(CAP), plain_score=lambda score, b, h, q_idx, kv_idx: CAP * torch.tanh(score / CAP)
    )


def _relative(heads: int, length: int, device: torch.device, dtype: torch.dtype) -> Variant:
    table = _learnt(device, heads, 2 * length - 1)
    return Variant(
        score=scores.relative_bias(table),
        plain_score=lambda score, b, h, q_idx, kv_idx: score + table[h, q_idx - kv_idx + length - 1],
        learnt=(table,),
        is_added=True,
    )


def _t5(heads: int, length: int, device: torch.device, dtype: torch.dtype) -> Variant:
    table = _learnt(device, T5_BUCKETS, heads)
    relative = torch.arange(1 - length, length)
    nearer = scores.t5_buckets(T5_BUCKETS)
    bucket = (nearer[relative.abs().clamp(max=len(nearer) - 1)] + (relative > 0) * (T5_BUCKETS // 2)).to(device)
    return Variant(
        score=scores.t5_bias(table),
        plain_score=lambda score, b, h, q_idx, kv_idx: score + table[bucket[kv_idx - q_idx + length - 1], h],
        learnt=(table,),
        is_added=True,
    )


def _head_scale(heads: int, length: int, device: torch.device, dtype: torch.dtype) -> Variant:
    factor = _learnt(device, heads)

    def scaled(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score * factor[h]

    return Variant(score=score_mod(scaled), plain_score=scaled, learnt=(factor,))


def _pairs(heads: int, length: int, device: torch.device, dtype: torch.dtype) -> Variant:
    bias = _learnt(device, 1, heads, length, length).detach().to(dtype).requires_grad_()
    return Variant(
        score=scores.pair_bias(bias),
        plain_score=lambda score, b, h, q_idx, kv_idx: score + bias[0, h, q_idx, kv_idx],
        learnt=(bias,),
        is_added=True,
    )


def _learnt(device: torch.device, *shape: int) -> Tensor:
    random = torch.Generator(device).manual_seed(1)
    return torch.randn(shape, generator=random, device=device).requires_grad_()


_MASKS: dict[str, Callable[[int, torch.device], Variant]] = {
    "noop": _noop,
    "causal": _causal,
    "sliding_window": _window,
    "prefix_lm": _prefix,
}
_SCORES: dict[str, Callable[[int, int, torch.device, torch.dtype], Variant]] = {
    "alibi": _alibi,
    "softcap": _softcap,
    "relative_bias": _relative,
    "t5_bias": _t5,
    "head_scale": _head_scale,
    "pair_bias": _pairs,
}
