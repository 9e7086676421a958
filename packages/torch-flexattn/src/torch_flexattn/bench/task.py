"""The tensors of a case, from a fixed seed, and its mask and score modification."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .suites import Attend
from .variants import Variant, variant


class TakesNoPart(Exception):
    """A case asks for what a contender does not have; the message says what."""


@dataclass(frozen=True, eq=False)
class Task:
    """One call of attention, ready to be made.

    Attributes:
        case: what it is of.
        q: ``[B, Hq, L, E]``.
        k: ``[B, Hkv, S, E]``.
        v: ``[B, Hkv, S, E]``.
        grad: of the output.
        variant: mask and score modification; queries are the last of the keys.
    """

    case: Attend
    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor
    variant: Variant

    @property
    def offset(self) -> int:
        """What is added to the number of a query."""
        return self.case.keys - self.case.queries

    @property
    def grouped(self) -> bool:
        """Whether query heads share key heads."""
        return self.case.heads != self.case.kv_heads

    @property
    def wanted(self) -> tuple[Tensor, ...]:
        """What the backward pass gives the gradients of."""
        return (self.q, self.k, self.v, *self.variant.learnt)

    def bias(self) -> Tensor | None:
        """The mask, bool ``[1, 1, L, S]``, or what the score modification adds, ``[1, Hq, L, S]``, as one tensor.

        Raises:
            TakesNoPart: the score modification is no addition.
        """
        of, case = self.variant, self.case
        b, h, i, j = (
            torch.arange(n, device=self.q.device).view([-1 if d == own else 1 for d in range(4)])
            for own, n in enumerate((1, case.heads, case.queries, case.keys))
        )
        i = i + self.offset
        if of.plain_score is None:
            return None if of.plain_mask is None else of.plain_mask(b, h, i, j).expand(1, -1, -1, -1)
        if not of.is_added:
            raise TakesNoPart(f"it has no place for {case.mod}")
        return of.plain_score(torch.zeros((), device=self.q.device), b, h, i, j).to(self.q.dtype)


def make_task(case: Attend, device: torch.device, dtype: torch.dtype) -> Task:
    """Draw the tensors of a case."""
    random = torch.Generator(device).manual_seed(0)

    def drawn(heads: int, length: int) -> Tensor:
        shape = (case.batch, heads, length, case.width)
        return torch.randn(shape, generator=random, device=device).to(dtype)

    q, k, v = drawn(case.heads, case.queries), drawn(case.kv_heads, case.keys), drawn(case.kv_heads, case.keys)
    grad = torch.randn(q.shape, generator=random, device=device).to(dtype)
    if case.backward:
        q, k, v = (t.requires_grad_() for t in (q, k, v))
    return Task(case, q, k, v, grad, variant(case.mod, case.heads, case.keys, device, dtype))
