"""Modifications made inside ``torch.compile``: functions that wait for the call which Dynamo reads them in.

They are combined like masks and score modifications, and are called like the functions that they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def as_it_is(function: Function) -> Function:
    """Mark a function that Dynamo may read with its caller, but not compile alone, nor what that calls.

    Alone it would give the caller, which runs as it is then, a modification that nobody is going to read.
    """
    frames: Any = torch._C._dynamo.eval_frame  # type: ignore[attr-defined]
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


class OpenMask:
    """A mask that is not recorded yet.

    Args:
        function: ``(b, h, q_idx, kv_idx) -> bool``.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return self.function(b, h, q_idx, kv_idx)

    def __and__(self, other: Callable[..., Any]) -> OpenMask:
        return OpenMask(lambda b, h, q_idx, kv_idx: self(b, h, q_idx, kv_idx) & other(b, h, q_idx, kv_idx))

    def __rand__(self, other: Callable[..., Any]) -> OpenMask:
        return OpenMask(lambda b, h, q_idx, kv_idx: other(b, h, q_idx, kv_idx) & self(b, h, q_idx, kv_idx))

    def __or__(self, other: Callable[..., Any]) -> OpenMask:
        return OpenMask(lambda b, h, q_idx, kv_idx: self(b, h, q_idx, kv_idx) | other(b, h, q_idx, kv_idx))

    def __ror__(self, other: Callable[..., Any]) -> OpenMask:
        return OpenMask(lambda b, h, q_idx, kv_idx: other(b, h, q_idx, kv_idx) | self(b, h, q_idx, kv_idx))

    def inverted(self) -> OpenMask:
        """``~``, which Dynamo does not call on objects."""
        return OpenMask(lambda b, h, q_idx, kv_idx: ~self(b, h, q_idx, kv_idx))

    def shift(self, q: int = 0, kv: int = 0) -> OpenMask:
        """Seen from elsewhere."""
        return OpenMask(lambda b, h, q_idx, kv_idx: self(b, h, q_idx + q, kv_idx + kv))

    def on_heads(self, heads: Iterable[int]) -> OpenMask:
        """For some heads; the others see what they would without it."""
        numbers = list(heads)

        def some(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            others = h >= 0
            for number in numbers:
                others = others & (h != number)
            return others | self(b, h, q_idx, kv_idx)

        return OpenMask(some)


def per_batch(masks: Iterable[Callable[..., Any]]) -> OpenMask:
    """One mask for each batch entry.

    Args:
        masks: of batch entry 0, 1, …
    """
    numbered = list(enumerate(masks))

    def each(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        seen = b < 0
        for entry, mask in numbered:
            seen = seen | ((b == entry) & mask(b, h, q_idx, kv_idx))
        return seen

    return OpenMask(each)


class OpenScore:
    """A score modification that is not recorded yet.

    Args:
        function: ``(score, b, h, q_idx, kv_idx) -> score``.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return self.function(score, b, h, q_idx, kv_idx)

    def then(self, other: Callable[..., Any]) -> OpenScore:
        """``other`` applied to the result of this one."""
        return OpenScore(lambda score, b, h, i, j: other(self(score, b, h, i, j), b, h, i, j))
