"""What a contender is: how it makes of a task a call without arguments, and whether it can be measured here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .task import Task

Run = Callable[[], Any]
Prepare = Callable[[Task], Run]


def is_here(device: torch.device) -> str:
    """Nothing is missing."""
    return ""


def needs_gpu(device: torch.device) -> str:
    """Why kernels of GPUs cannot be measured on a device; ``""`` where they can."""
    return "" if device.type == "cuda" else f"it has kernels for GPUs alone, and this is {device.type}"


def as_it_is(task: Task) -> Task:
    """The tensors in the order ``[B, H, S, E]``."""
    return task


@dataclass(frozen=True)
class Peer:
    """Somebody to be compared with.

    Attributes:
        prepare: makes the call of a task; what it does is not timed.
        absent: why it cannot be measured on a device, whatever the case; ``""``: it can.
        laid: the task in memory as this peer likes it, with leaves of its own where gradients are wanted.
        is_partial: it gives the first results alone: those are compared.
    """

    prepare: Prepare
    absent: Callable[[torch.device], str] = is_here
    laid: Callable[[Task], Task] = as_it_is
    is_partial: bool = False
