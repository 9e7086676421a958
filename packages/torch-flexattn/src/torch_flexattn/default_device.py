"""PyTorch's default device, which may be another one than that of the tensors of a call."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def is_elsewhere(device: torch.device) -> bool:
    """Whether a default device was set that is neither a CPU nor this one."""
    # It stands on the stack of modes, whose length costs nothing to ask for.
    return torch._C._len_torch_function_stack() > 0 and torch.get_default_device().type not in ("cpu", device.type)


def made_on(device: torch.device) -> AbstractContextManager[Any]:
    """Where new tensors go to ``device`` although the default device is elsewhere.

    Example:
        >>> with torch.device("meta"), made_on(torch.device("cpu")):
        ...     torch.zeros(()).device
        device(type='cpu')
    """
    return device if is_elsewhere(device) else nullcontext()
