"""Masks and score modifications as objects: made from functions, combined, saved, evaluated anywhere.

Both hold a program, the tensors it captures and the numbers it was made with. They are called like the functions they
came from, on single indices or on tensors that broadcast, so PyTorch's own FlexAttention takes them as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from .errors import KindError, UnsupportedModError
from .evaluate import evaluator, unchecked
from .open_mods import OpenMask, OpenScore, as_it_is
from .program import Builder, Program
from .shown import show
from .trace import trace


@dataclass(frozen=True, eq=False)
class Mod:
    """A program with what fills its places.

    Attributes:
        program: what is computed.
        captures: the captured tensors.
        scalars: the numbers it was made with.
        numbers: the same as a tensor, float64 on the CPU: in a compiled graph another number is no other graph. NaN
            where a number waits for the lengths (see ``masks.with_lengths``).
    """

    program: Program
    captures: tuple[Tensor, ...] = ()
    scalars: tuple[int | float, ...] = ()
    numbers: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Written now, because Dynamo, which reads what is called, cannot read what writes it; so is the program's text.
        self.program.text  # noqa: B018
        known = [s if isinstance(s, int | float) else math.nan for s in self.scalars]
        numbers = torch.tensor(known, dtype=torch.float64)
        if torch.compiler.is_dynamo_compiling():  # a known program and tensors of the graph, packed for the op
            object.__setattr__(self, "numbers", numbers)
            return
        if numbers.is_inference():
            with torch.inference_mode(False):  # training may use what inference made
                numbers = numbers.clone()
        object.__setattr__(self, "numbers", numbers)
        object.__setattr__(self, "_run", self.program.prepared(evaluator))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.program, self.captures, self.scalars)

    def _evaluate(self, **inputs: Tensor | float) -> Tensor:
        tensors = {
            name: x
            if isinstance(x, Tensor)
            else torch.tensor(x, dtype=torch.float32 if name == "score" else torch.int32)
            for name, x in inputs.items()
        }
        if torch.compiler.is_dynamo_compiling():  # inside another function: what it does becomes part of that one's
            return self._inlined(tensors)
        (result,), _ = self._run(tensors, self.captures, self.scalars)  # type: ignore[attr-defined]
        return result

    def _inlined(self, tensors: dict[str, Tensor]) -> Tensor:
        if not all(isinstance(s, int | float) for s in self.scalars):
            raise UnsupportedModError(
                "a mask that waits for the lengths inside another one under torch.compile: give it q_len and kv_len"
            )
        filled = [s + torch.zeros((), dtype=getattr(torch, t)) for s, t in zip(self.scalars, self.program.scalars)]
        (result,), _ = self._run(tensors, self.captures, filled, unchecked)  # type: ignore[attr-defined]
        return result

    @property
    def dependencies(self) -> frozenset[str]:
        """Which of ``b``, ``h``, ``q``, ``kv``, ``score`` it depends on."""
        return self.program.depends_on

    def to(self, device: torch.device | str) -> Self:
        """With the captured tensors on another device."""
        return type(self)(self.program, tuple(c.to(device) for c in self.captures), self.scalars)

    def explain(self, q_len: int | None = None, kv_len: int | None = None) -> Any:
        """Its program and what is generated from it; see :func:`torch_flexattn.explain`."""
        return show("explanation", self, q_len, kv_len)

    def __repr__(self) -> str:
        captured = ", ".join(str(tuple(c.shape)) for c in self.captures)
        return f"{type(self).__name__}({self.program.key}, captures=[{captured}], scalars={list(self.scalars)})"


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
        return _broadcast(result, b, h, q_idx, kv_idx)

    @as_it_is
    def __and__(self, other: MaskLike) -> MaskMod:
        """Visible in both."""
        if torch.compiler.is_dynamo_compiling():
            return OpenMask(self) & other  # type: ignore[return-value]
        return _combined("and", self, mask_mod(other))

    @as_it_is
    def __rand__(self, other: MaskLike) -> MaskMod:
        if torch.compiler.is_dynamo_compiling():
            return OpenMask(other) & self  # type: ignore[return-value]
        return _combined("and", mask_mod(other), self)

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
        from .reindex import shifted

        return shifted(self, q, kv)

    def on_heads(self, heads: Iterable[int]) -> MaskMod:
        """The mask for some query heads; the others see what they would without it. ``&`` adds that of others.

        Raises:
            InputError: a negative number.
            KindError: no integers.
        """
        from .planes import on_heads

        return on_heads(self, heads)

    @staticmethod
    def per_batch(masks: Iterable[MaskLike]) -> MaskMod:
        """One mask for batch entry 0, one for entry 1, …; an entry behind the last sees nothing.

        Raises:
            InputError: none at all.
            KindError: something that is no mask.
        """
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
        return _broadcast(result, score, b, h, q_idx, kv_idx)

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
    return ScoreMod(parts.builder.finish([score]), tuple(parts.captures), tuple(parts.scalars))


class Assembly:
    """Puts mods together into one program: a tensor that several capture is captured once."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.captures: list[Tensor] = []
        self.scalars: list[int | float] = []

    def append(self, mod: Mod, filled: Mapping[int, int] | None = None, /, **replaced: int) -> list[int]:
        """Add the nodes of ``mod``; the numbers of its outputs.

        ``replaced``: nodes that stand for its inputs; ``filled``: for its scalars.
        """
        captures = []
        for tensor, spec in zip(mod.captures, mod.program.captures, strict=True):
            places = [n for n, known in enumerate(self.captures) if known is tensor]
            if not places:
                places = [len(self.captures)]
                self.captures.append(tensor)
                self.builder.captures.append(spec)
            captures.append(places[0])
        first = len(self.scalars)
        self.scalars += mod.scalars
        self.builder.scalars += mod.program.scalars
        scalars = range(first, len(self.scalars))
        return self.builder.inline(mod.program, captures, scalars, replaced, filled)

    def number(self, value: int) -> int:
        """The node of an integer that is filled in at run time."""
        self.scalars.append(value)
        self.builder.scalars.append("int32")
        return self.builder.add("scalar", "int32", value=len(self.scalars) - 1)

    def gather(self, table: Tensor, *indices: int) -> int:
        """The node of an entry of an int32 tensor, captured for it."""
        self.captures.append(table)
        self.builder.captures.append(("int32", table.dim()))
        return self.builder.add("gather", "int32", *indices, value=len(self.captures) - 1)

    def mask(self, output: int) -> MaskMod:
        """The mask whose result is this node."""
        return MaskMod(self.builder.finish([output]), tuple(self.captures), tuple(self.scalars))


def _combined(op: str, *mods: MaskMod) -> MaskMod:
    parts = Assembly()
    outputs = [output for mod in mods for output in parts.append(mod)]
    return parts.mask(parts.builder.add(op, "bool", *outputs))


def _check_callable(name: str, function: object, other: type) -> None:
    if isinstance(function, other):
        raise KindError(f"{name} got a {other.__name__}: the two were swapped")
    if not callable(function):
        raise KindError(f"{name} must be a function, got {type(function).__name__}")


def _broadcast(result: Tensor, *inputs: Tensor | int) -> Tensor:
    if torch.compiler.is_dynamo_compiling():  # of single indices
        return result
    shape = torch.broadcast_shapes(*(i.shape for i in inputs if isinstance(i, Tensor)))
    return result if result.shape == shape else result.expand(shape)
