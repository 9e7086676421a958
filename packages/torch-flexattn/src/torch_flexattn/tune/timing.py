"""Milliseconds of one call, on the device alone.

On a GPU: events on the caller's stream around a call that finds nothing in the L2 cache, with the device busy until the
host has queued the launches. Elsewhere: the clock of the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

CYCLES_PER_MS = 2_500_000
"""Of ``torch.cuda._sleep``: more than a GPU's clock has, so that the device never waits for the host."""
LONGEST_SLEEP_MS = 50.0


class Stopwatch:
    """Times calls on one device.

    Args:
        device: where they run.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._flush = None
        if device.type == "cuda":
            cache = torch.cuda.get_device_properties(device).L2_cache_size
            self._flush = torch.empty(2 * cache, dtype=torch.int8, device=device)

    def once(self, run: Callable[[], Any]) -> float:
        """One call."""
        if self._flush is None:
            began = time.perf_counter()
            run()
            return 1e3 * (time.perf_counter() - began)
        torch.cuda.synchronize(self.device)
        began = time.perf_counter()
        run()
        host_ms = 1e3 * (time.perf_counter() - began)
        torch.cuda.synchronize(self.device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        torch.cuda._sleep(int(min(1.5 * host_ms, LONGEST_SLEEP_MS) * CYCLES_PER_MS))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize(self.device)
        return start.elapsed_time(end)

    def median(self, run: Callable[[], Any], rounds: int) -> float:
        """The middle of some calls, after one that does not count."""
        run()
        return median(self.once(run) for _ in range(rounds))
