"""Masks and score modifications as objects: made from functions, combined, saved, evaluated anywhere.

Both hold a program, the tensors it captures and the numbers it was made with. They are called like the functions they
came from, on single indices or on tensors that broadcast, so PyTorch's own FlexAttention takes them as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .assembly import Assembly
from .errors import KindError
from .filled import Mod, broadcast
from .open_mods import OpenMask, OpenScore, as_it_is
from .open_mods import per_batch as open_per_batch
from .shown import show
from .trace import trace


class MaskMod(Mod):
    """Which keys a query sees; made by :func:`mask_mod`, :mod:`torch_flexattn.masks`, and ``&``, ``|``, ``~``.

    Called with int32 indices ``[...]`` that broadcast, it gives bools of the shape that they broadcast to.

    Example:
        >>> causal = mask_mod(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)
        >>> zero, i = torch.tensor(0), torch.arange(3)
        >>> (~causal)(zero, zero, torch.tensor(1), i)
        tensor([False, False,  True])
    """

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """True where visible, of the shape that the indices broadcast to."""
        result = self._evaluate(b=b, h=h, q=q_idx, kv=kv_idx)
        return broadcast(result, b, h, q_idx, kv_idx)

    @as_it_is
    def __and__(self, other: MaskLike) -> MaskMod:
        """Visible in both."""
        if torch.compiler.is_dynamo_compiling():
            return OpenMask(self) & other  # type: ignore[return-value]
        return _both(self, mask_mod(other))

    @as_it_is
    def __rand__(self, other: MaskLike) -> MaskMod:
        if torch.compiler.is_dynamo_compiling():
            return OpenMask(other) & self  # type: ignore[return-value]
        return _both(mask_mod(other), self)

    @as_it_is
    def __or__(self, other: MaskLike) -> MaskMod:
        """Visible in either."""
        if torch.compiler.is_dynamo_compiling():
            return OpenMask(self) | other  # type: ignore[return-value]
        return _combined("or", self, mask_mod(other))

    @as_it_is
    def __ror__(self, other: MaskLike) -> MaskMod:
        if torch.compiler.is_dynamo_compiling():
            return OpenMask(other) | self  # type: ignore[return-value]
        return _combined("or", mask_mod(other), self)

    @as_it_is
    def __invert__(self) -> MaskMod:
        """Visible where it was not."""
        return _combined("not", self)

    @as_it_is
    def shift(self, q: int = 0, kv: int = 0) -> MaskMod:
        """The mask seen from elsewhere: query ``i`` and key ``j`` are ``i + q`` and ``j + kv`` of this one.

        Raises:
            KindError: no integers.

        Example:
            >>> causal = mask_mod(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)
            >>> zero = torch.tensor(0)
            >>> causal.shift(q=2)(zero, zero, zero, torch.arange(4))
            tensor([ True,  True,  True, False])
        """
        if torch.compiler.is_dynamo_compiling():
            return OpenMask(self).shift(q, kv)  # type: ignore[return-value]
        from .reindex import shifted

        return shifted(self, q, kv)

    @as_it_is
    def on_heads(self, heads: Iterable[int]) -> MaskMod:
        """The mask for some query heads; the others see what they would without it. ``&`` adds that of others.

        Raises:
            InputError: a negative number.
            KindError: no integers.
        """
        if torch.compiler.is_dynamo_compiling():
            return OpenMask(self).on_heads(heads)  # type: ignore[return-value]
        from .planes import on_heads

        return on_heads(self, heads)

    @staticmethod
    @as_it_is
    def per_batch(masks: Iterable[MaskLike]) -> MaskMod:
        """One mask for batch entry 0, one for entry 1, …; an entry behind the last sees nothing.

        Raises:
            InputError: none at all.
            KindError: something that is no mask.
        """
        if torch.compiler.is_dynamo_compiling():
            return open_per_batch(masks)  # type: ignore[return-value]
        from .planes import per_batch

        return per_batch(masks)

    def viz(self, q_len: int, kv_len: int | None = None, **options: Any) -> str:
        """A picture of characters; see :func:`torch_flexattn.viz.text`, which has the options."""
        return show("picture", self, q_len, kv_len, **options)


class ScoreMod(Mod):
    """What becomes of a score; made by :func:`score_mod`, :mod:`torch_flexattn.scores`, and :meth:`then`.

    Called with scores and int32 indices ``[...]`` that broadcast, it gives scores of the shape that they broadcast to.

    Example:
        >>> far = score_mod(lambda score, b, h, q_idx, kv_idx: score - 0.5 * (q_idx - kv_idx))
        >>> zero, i = torch.tensor(0), torch.arange(3)
        >>> far.then(lambda score, b, h, q_idx, kv_idx: 2 * score)(torch.zeros(3), zero, zero, torch.tensor(2), i)
        tensor([-2., -1.,  0.])
    """

    def __call__(self, score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """The new score, of the shape that the arguments broadcast to."""
        result = self._evaluate(score=score, b=b, h=h, q=q_idx, kv=kv_idx)
        return broadcast(result, score, b, h, q_idx, kv_idx)

    @as_it_is
    def then(self, other: ScoreLike) -> ScoreMod:
        """``other`` applied to the result of this one."""
        if torch.compiler.is_dynamo_compiling():
            return OpenScore(self).then(other)  # type: ignore[return-value]
        return compose_scores(self, other)

    def viz(self, q_len: int, kv_len: int | None = None, **options: Any) -> str:
        """A picture of characters of what becomes of a score; see :func:`torch_flexattn.viz.text`."""
        return show("picture", self, q_len, kv_len, **options)


MaskLike = MaskMod | Callable[..., Any]
ScoreLike = ScoreMod | Callable[..., Any]


@as_it_is
def mask_mod(function: MaskLike) -> MaskMod:
    """A mask from a function; usable as a decorator.

    Args:
        function: ``(b, h, q_idx, kv_idx) -> bool``, of single integers; True where key ``kv_idx`` is visible.

    Raises:
        KindError: no function of four arguments that returns a bool.
        UnsupportedModError: it does what a kernel cannot.

    Example:
        >>> causal = mask_mod(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)
        >>> near = mask_mod(lambda b, h, q_idx, kv_idx: q_idx - kv_idx < 2)
        >>> i = torch.arange(3)
        >>> (causal & near)(torch.tensor(0), torch.tensor(0), i[:, None], i[None, :]).int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 1, 1]], dtype=torch.int32)

    Reference:
        FlexAttention (MLSys 2025), section 3.
    """
    if isinstance(function, MaskMod):
        return function
    _check_callable("mask_mod", function, ScoreMod)
    if torch.compiler.is_dynamo_compiling():
        return OpenMask(function)  # type: ignore[return-value]
    traced = trace(function, "mask")
    return MaskMod(traced.program, traced.captures, traced.scalars)


@as_it_is
def score_mod(function: ScoreLike) -> ScoreMod:
    """A score modification from a function; usable as a decorator.

    Args:
        function: ``(score, b, h, q_idx, kv_idx) -> score``, of single numbers; ``score`` is the scaled product.

    Raises:
        KindError: no function of five arguments that returns a float.
        UnsupportedModError: it does what a kernel cannot.

    Example:
        >>> softcap = score_mod(lambda score, b, h, q_idx, kv_idx: 20 * torch.tanh(score / 20))
        >>> zero = torch.tensor(0)
        >>> softcap(torch.tensor(40.0), zero, zero, zero, zero)
        tensor(19.2806)

    Reference:
        FlexAttention (MLSys 2025), section 3.
    """
    if isinstance(function, ScoreMod):
        return function
    _check_callable("score_mod", function, MaskMod)
    if torch.compiler.is_dynamo_compiling():
        return OpenScore(function)  # type: ignore[return-value]
    traced = trace(function, "score")
    return ScoreMod(traced.program, traced.captures, traced.scalars)


@as_it_is
def compose_scores(*mods: ScoreLike) -> ScoreMod:
    """One score modification that applies all, first to last.

    Example:
        >>> double = score_mod(lambda score, b, h, q, kv: score * 2)
        >>> zero = torch.tensor(0)
        >>> compose_scores(double, lambda score, b, h, q, kv: score + 1)(torch.tensor(3.0), zero, zero, zero, zero)
        tensor(7.)
    """
    if torch.compiler.is_dynamo_compiling():
        whole = OpenScore(mods[0])
        for mod in mods[1:]:
            whole = whole.then(mod)
        return whole  # type: ignore[return-value]
    parts = Assembly()
    score = parts.builder.add("score", "float32")
    for mod in mods:
        (score,) = parts.append(score_mod(mod), score=score)
    return ScoreMod(*parts.finish(score))


def _combined(op: str, *mods: MaskMod) -> MaskMod:
    parts = Assembly()
    outputs = [output for mod in mods for output in parts.append(mod)]
    return MaskMod(*parts.finish(parts.builder.add(op, "bool", *outputs)))


def _both(*mods: MaskMod) -> MaskMod:
    """Visible in each: positions that one has no place for remain so."""
    return replace(_combined("and", *mods), tokens=min((m.tokens for m in mods if m.tokens is not None), default=None))


def _check_callable(name: str, function: object, other: type) -> None:
    if isinstance(function, other):
        raise KindError(f"{name} got a {other.__name__}: the two were swapped")
    if not callable(function):
        got = type(function).__name__
        raise KindError(f"{name} must be a function, got {got}{_remedy(name, function)}")


def _remedy(name: str, given: object) -> str:
    if isinstance(given, Tensor):
        return f": {'masks.from_dense' if name == 'mask_mod' else 'scores.add_mask'} makes one of a tensor"
    return ": it goes to block_mask" if type(given).__name__ == "BlockMask" else ""
