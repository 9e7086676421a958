"""What the backward kernels write and add to, and the results made of it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...differentiate import Derivative, differentiate
from ...mods import ScoreMod
from ...program import Program
from .delta import row_products
from .layout import in_a_row, last_together
from .rounded import rounded_like

Results = tuple[Tensor, Tensor, Tensor, list[Tensor | None], Tensor | None]


class Gradients:
    """Sums in the making.

    Attributes:
        q: float32, contiguous, zero, to which tiles are added.
        k: to be written, contiguous; float32 where one batch entry serves several.
        v: likewise.
        captures: float32 zeros like each captured tensor, ``None`` where no gradient is asked for.
        products: of each row's output and its gradient (see ``delta``).
        derivative: of the score modification, or ``None``.
    """

    def __init__(
        self,
        grad_out: Tensor,
        grad_lse: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        score: ScoreMod | None,
        needed: Sequence[bool] | None,
    ) -> None:
        given = () if score is None else score.captures
        needed = [c.requires_grad for c in given] if needed is None else list(needed)
        summed = torch.float32 if k.shape[0] < q.shape[0] else k.dtype
        self.q = torch.empty(q.shape, dtype=torch.float32, device=q.device)
        self.k, self.v = (torch.empty(q.shape[0], *t.shape[1:], dtype=summed, device=t.device) for t in (k, v))
        self.captures = [
            torch.zeros(c.shape, dtype=torch.float32, device=c.device) if n else None for c, n in zip(given, needed)
        ]
        of_lse = None if grad_lse is None else in_a_row(grad_lse)
        self.products = row_products(last_together(out), last_together(grad_out), of_lse, self.q)
        self.derivative = None if score is None else derivative_of(score.program, tuple(needed))

    @property
    def places(self) -> list[Any]:
        """Arguments of a kernel for the gradients of captured tensors: address and strides."""
        if self.derivative is None:
            return []
        found: list[Any] = []
        for number in sorted({s.capture for s in self.derivative.scatters}):
            of = self.captures[number]
            assert of is not None
            found += [of, *of.stride()]
        return found

    def results(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lse: Tensor,
        score: ScoreMod | None,
        sinks: Tensor | None,
        factor: float = 1.0,
    ) -> Results:
        """Gradients in the types of what they belong to; ``factor`` is still to be multiplied to those of queries."""
        given = () if score is None else score.captures
        of_q = rounded_like(q, self.q, factor)
        of_k, of_v = self.k, self.v
        if k.shape[0] < q.shape[0]:
            of_k, of_v = (g.sum(0, keepdim=True) for g in (of_k, of_v))
        of_captures = [None if g is None else g.to(c.dtype) for g, c in zip(self.captures, given)]
        return of_q, of_k.to(k.dtype), of_v.to(v.dtype), of_captures, _of_sinks(sinks, lse, self.products)


def _of_sinks(sinks: Tensor | None, lse: Tensor, products: Tensor) -> Tensor | None:
    """``Σ softmax weight of the sink · (grad_lse − Σ out · grad_out)``, which is ``−products``."""
    if sinks is None:
        return None
    share = torch.exp(sinks.float().view(1, -1, 1) - lse).masked_fill(lse == float("-inf"), 0)
    return -(share * products).sum((0, 2)).to(sinks.dtype)


@functools.lru_cache(maxsize=1024)
def derivative_of(program: Program, needed: tuple[bool, ...]) -> Derivative:
    """The derivative of a score modification, made once."""
    return differentiate(program, needed)
