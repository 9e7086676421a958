"""A program with what fills its places: what masks and score modifications have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from .errors import UnsupportedModError
from .evaluate import evaluator, unchecked
from .program import Program
from .shown import show


@dataclass(frozen=True, eq=False)
class Mod:
    """A program with what fills its places.

    Attributes:
        program: what is computed.
        captures: the captured tensors.
        scalars: the numbers it was made with.
        numbers: the same as a tensor, float64 on the CPU: in a compiled graph another number is no other graph. NaN
            where a number waits for the lengths (see ``masks.with_lengths``).
        tokens: of a mask of a grid, how many queries or keys it has a place for.
    """

    program: Program
    captures: tuple[Tensor, ...] = ()
    scalars: tuple[int | float, ...] = ()
    tokens: int | None = None
    numbers: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Written now, because Dynamo, which reads what is called, cannot read what writes it; so is the program's text.
        self.program.text  # noqa: B018
        known = [s if isinstance(s, int | float) else math.nan for s in self.scalars]
        numbers = torch.tensor(known, dtype=torch.float64, device="cpu")
        if torch.compiler.is_dynamo_compiling():  # a known program and tensors of the graph, packed for the op
            object.__setattr__(self, "numbers", numbers)
            return
        if numbers.is_inference():
            with torch.inference_mode(False):  # training may use what inference made
                numbers = numbers.clone()
        object.__setattr__(self, "numbers", numbers)
        object.__setattr__(self, "_run", self.program.prepared(evaluator))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.program, self.captures, self.scalars, self.tokens)

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
        return type(self)(self.program, tuple(c.to(device) for c in self.captures), self.scalars, self.tokens)

    def explain(self, q_len: int | None = None, kv_len: int | None = None) -> Any:
        """Its program and what is generated from it; see :func:`torch_flexattn.explain`."""
        return show("explanation", self, q_len, kv_len)

    def __repr__(self) -> str:
        captured = ", ".join(str(tuple(c.shape)) for c in self.captures)
        return f"{type(self).__name__}({self.program.key}, captures=[{captured}], scalars={list(self.scalars)})"


def broadcast(result: Tensor, *inputs: Tensor | int) -> Tensor:
    """A result in the shape to which the arguments broadcast.

    Args:
        result: of the program.
        inputs: scores and indices.
    """
    if torch.compiler.is_dynamo_compiling():  # of single indices
        return result
    shape = torch.broadcast_shapes(*(i.shape for i in inputs if isinstance(i, Tensor)))
    return result if result.shape == shape else result.expand(shape)
