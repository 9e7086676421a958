"""Memory: what a call takes of a GPU's, and whether a machine has what a dense peer would take."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

SHARE = 2
"""Of the machine's memory, what a peer may take: one part in so many."""


def peak_bytes(run: Callable[[], Any], device: torch.device) -> int | None:
    """The most that PyTorch holds during a call beyond what it held before, results included; ``None`` on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def check_room(what: str, wanted: int, device: torch.device) -> None:
    """A CPU has memory for a dense tensor. A GPU says so by itself; a system may end the process instead.

    Raises:
        MemoryError: it has not.
    """
    if device.type != "cpu":
        return
    there = machine_bytes()
    if wanted > there // SHARE:
        gib = 2**30
        raise MemoryError(f"{what} would take {wanted / gib:,.1f} GiB of the machine's {there / gib:,.1f}")


def machine_bytes() -> int:
    """Memory of this machine; where the system does not say, as if there were no end."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 62
