"""Tensors below the transformations of ``torch.func``, which wrap those that they differentiate or run over."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_gradtrackingtensor, peek_interpreter_stack

from .errors import UnsupportedError

NO_BATCHES = "torch.vmap has no rule for attention: put what it would run over into the batch dimension"


def is_transformed() -> bool:
    """Whether a transformation is active, outside of compiled code."""
    return not torch.compiler.is_compiling() and peek_interpreter_stack() is not None


def unwrapped(t: Tensor) -> Tensor:
    """The tensor that a gradient transformation wrapped; itself where none did.

    Raises:
        UnsupportedError: ``torch.vmap`` runs over it.
    """
    while is_gradtrackingtensor(t):
        t = get_unwrapped(t)
    if is_batchedtensor(t):
        raise UnsupportedError(NO_BATCHES)
    return t
