"""Jagged nested tensors: their sequences lie packed in one tensor, so they go the way of packed sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InputError, KindError
from .auxiliary import AuxOutput


class Ragged(NamedTuple):
    """A nested tensor taken apart.

    Attributes:
        tokens: ``[T, heads, features]``, sequence after sequence.
        offsets: int64 ``[B + 1]``: where sequences begin and end.
        heads_first: whether it had the layout ``[B, heads, j, features]``, not ``[B, j, heads, features]``.
    """

    tokens: Tensor
    offsets: Tensor
    heads_first: bool

    def nested(self, tokens: Tensor) -> Tensor:
        """Other tokens of the same sequences ``[T, heads, …]``, in this layout."""
        made = torch.nested.nested_tensor_from_jagged(tokens, self.offsets)
        return made.transpose(1, 2) if self.heads_first else made


def is_nested(t: object) -> bool:
    """Whether something is a nested tensor."""
    return isinstance(t, Tensor) and t.is_nested


def attend(
    packed: Callable[..., Any], query: Any, key: Any, value: Any, *, return_lse: bool, return_aux: Any, **options: Any
) -> Any:
    """Attention inside each sequence of jagged nested tensors.

    Args:
        packed: attention of packed sequences, ``(q, k, v, cu_seqlens_q, cu_seqlens_k, **options)``.
        query: ``[B, Hq, j, E]`` or ``[B, j, Hq, E]``; which of the two, the ragged dimension says.
        key: likewise, with lengths of its own.
        value: likewise, with the lengths of ``key``.
        return_lse: of the call, as are all others.
        return_aux: see above.

    Returns:
        What ``packed`` returns, each tensor nested like ``query``.

    Raises:
        InputError: no jagged layout, holes between sequences, other sizes.
        KindError: nested and other tensors together.
    """
    q, k, v = (taken(name, t) for name, t in (("query", query), ("key", key), ("value", value)))
    if q.offsets.shape != k.offsets.shape:
        raise InputError(f"query and key must hold as many sequences, got {query.size(0)} and {key.size(0)}")
    if k.offsets is not v.offsets:
        if k.offsets.shape != v.offsets.shape or k.tokens.shape[0] != v.tokens.shape[0]:
            raise InputError(f"key and value must have the same lengths, got {_sizes(k)} and {_sizes(v)}")
        if k.offsets.device.type == "cpu" and not torch.equal(k.offsets, v.offsets):
            raise InputError(f"key and value must have the same lengths, got {_sizes(k)} and {_sizes(v)}")
    bounds = q.offsets, k.offsets
    found = packed(q.tokens, k.tokens, v.tokens, *bounds, return_lse=return_lse, return_aux=return_aux, **options)
    if return_aux is not None:
        out, aux = found
        return q.nested(out), AuxOutput(*(None if t is None else q.nested(t) for t in aux))
    return tuple(map(q.nested, found)) if return_lse else q.nested(found)


def taken(name: str, t: object) -> Ragged:
    """The parts of a nested tensor.

    Raises:
        InputError: no jagged layout, holes between sequences, other dimensions.
        KindError: no nested tensor.
    """
    if not isinstance(t, Tensor) or not t.is_nested:
        got = "another tensor" if isinstance(t, Tensor) else type(t).__name__
        raise KindError(f"query, key and value must all be nested tensors or none, got {got} for {name}")
    if t.layout != torch.jagged:
        raise InputError(f"{name} must have layout=torch.jagged, got {t.layout}")
    ragged = getattr(t, "_ragged_idx", None)
    if t.dim() != 4 or ragged not in (1, 2):
        raise InputError(f"{name} must be [B, heads, j, features] or [B, j, heads, features], got {tuple(t.shape)}")
    if t.lengths() is not None:  # type: ignore[attr-defined]
        raise InputError(f"{name} must have its sequences one after the other, got holes: call .contiguous()")
    tokens = t.values().transpose(0, 1) if ragged == 2 else t.values()
    return Ragged(tokens, t.offsets(), ragged == 2)  # type: ignore[attr-defined]


def _sizes(of: Ragged) -> Any:
    return of.offsets.diff().tolist() if of.offsets.device.type == "cpu" else f"{of.tokens.shape[0]} tokens"
