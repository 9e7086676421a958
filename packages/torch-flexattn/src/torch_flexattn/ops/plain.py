"""Calls that only autograd and a kernel can see need no dispatcher: its lists cost more than small kernels."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.nn import Parameter

PLAIN = (Tensor, Parameter)


def plain_eager(*inputs: Tensor | None) -> bool:
    """Whether nothing but autograd would see an operator on ``inputs``."""
    return (
        not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0
        and peek_interpreter_stack() is None
        and all(t is None or type(t) in PLAIN for t in inputs)
    )


def is_autocast_on(like: Tensor) -> bool:
    """Whether autocast is on for the device of a tensor."""
    device = like.device.type
    return device != "meta" and torch.is_autocast_enabled(device)


def outside_autocast(like: Tensor) -> AbstractContextManager[Any]:
    """Kernels choose their types themselves: inside, autocast is off."""
    return torch.autocast(like.device.type, enabled=False) if is_autocast_on(like) else nullcontext()


def on_device(like: Tensor) -> AbstractContextManager[Any]:
    """Launches go to the GPU that holds the tensor."""
    if not like.is_cuda or like.get_device() == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(like.device)


def needs_grad(*inputs: Tensor | None) -> bool:
    """Whether a gradient will flow to one of ``inputs``; in forward mode always: autograd then says it has no rule."""
    if forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
