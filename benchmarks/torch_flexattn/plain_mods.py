"""The masks and score modifications of the GPU cases as plain functions: what PyTorch's flex_attention is given.

The answers in float64 are made of them too, so that the library of masks and scores is not checked by itself. Tensors
that they read are made beforehand: `table_of` those of score modifications.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
CAP = 20.0

__all__ = ["CAP", "Mask", "Score", "document_bounds", "plain_mask", "plain_score", "table_of"]


def _causal(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return q_idx >= kv_idx


def _window(width: int) -> Mask:
    def mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx >= kv_idx) & (q_idx - kv_idx < width)

    return mask


def _documents(numbers: Tensor) -> Mask:
    def mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx >= kv_idx) & (numbers[q_idx] == numbers[kv_idx])

    return mask


def document_bounds(length: int, size: int) -> list[int]:
    """Where documents of one size begin, and the end; the last may be shorter."""
    return [*range(0, length, size), length]


def plain_mask(name: str, length: int, device: torch.device) -> Mask | None:
    """A mask by name: ``full`` (none), ``causal``, ``window1024``, ``documents1000`` (causal inside)."""
    if name == "full":
        return None
    if name == "causal":
        return _causal
    if name.startswith("window"):
        return _window(int(name.removeprefix("window")))
    if name.startswith("documents"):
        return _documents(torch.arange(length, device=device) // int(name.removeprefix("documents")))
    raise ValueError(f"mask {name!r} is not known")


def table_of(name: str, heads: int, length: int, device: torch.device) -> Tensor | None:
    """What a score modification reads, float32: slopes ``[H]`` of ``alibi``, or ``[H, 2S - 1]`` of ``relative``."""
    if name == "alibi":
        return torch.exp2(-8 * torch.arange(1, heads + 1, device=device) / heads)
    if name == "relative":
        random = torch.Generator(device).manual_seed(1)
        return torch.randn(heads, 2 * length - 1, generator=random, device=device)
    return None


def plain_score(name: str, table: Tensor | None) -> Score | None:
    """A score modification by name, over its table: none, ``alibi``, ``softcap`` (of 20) or ``relative``."""
    if not name:
        return None
    if name == "softcap":
        return lambda score, b, h, q_idx, kv_idx: CAP * torch.tanh(score / CAP)
    if table is None:
        raise ValueError(f"score modification {name!r} is not known, or lacks its table")
    if name == "alibi":
        return lambda score, b, h, q_idx, kv_idx: score - table[h] * (q_idx - kv_idx)
    middle = table.shape[1] // 2
    return lambda score, b, h, q_idx, kv_idx: score + table[h, q_idx - kv_idx + middle]
