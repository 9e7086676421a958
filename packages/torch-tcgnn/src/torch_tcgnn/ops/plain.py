"""Calls that only autograd and a kernel can see need no dispatcher.

Passing a graph through ``torch.ops`` costs tens of microseconds of list conversions a call, more than small kernels
run. In plain eager mode the operators are therefore called on :class:`Adjacency` objects directly; under
``torch.compile``, ``torch.export``, dispatch modes, functorch transforms or tensor subclasses they are called as ops on
tensor lists.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.nn import Parameter

from ..adjacency import Adjacency

Structure = list[Tensor] | Adjacency
"""A graph as an operator takes it: a tensor list through the dispatcher, an adjacency past it."""
PLAIN = (Tensor, Parameter)


def plain_eager(*inputs: Tensor | None) -> bool:
    """Whether nothing but autograd would see an operator on ``inputs``."""
    return (
        not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0
        and peek_interpreter_stack() is None
        and _all_plain(inputs)
    )


def _all_plain(inputs: tuple[Tensor | None, ...]) -> bool:
    for t in inputs:  # noqa: SIM110 - a generator costs more than what it yields, here and below
        if t is not None and type(t) not in PLAIN:
            return False
    return True


def needs_grad(*inputs: Tensor | None) -> bool:
    """Whether a gradient will flow to one of ``inputs``; in forward mode always: autograd then says it has no rule."""
    if forward_ad._current_level >= 0:
        return True
    if not torch.is_grad_enabled():
        return False
    for t in inputs:  # noqa: SIM110
        if t is not None and t.requires_grad:
            return True
    return False
