"""Launches go to the GPU that holds the tensors."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor


def on_device(t: Tensor) -> AbstractContextManager[object]:
    """Make the GPU of ``t`` the current one; nothing is done, quickly, where it is."""
    if not t.is_cuda or t.get_device() == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(t.device)
