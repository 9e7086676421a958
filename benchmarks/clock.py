"""The two clocks. Each gives milliseconds a call; a sample repeats short calls until it is long enough to trust.

CPU: `time.perf_counter_ns`. CUDA: events on the current stream, read after a synchronise. A *warm* sample begins with
one call off the clock, so that caches, thread pools and allocators are as the contender itself leaves them, not as the
one before it did; a *cold* sample (CUDA only) overwrites a buffer of twice the L2 first.
"""

import math
import time
from typing import Protocol

import torch

from benchmarks.case import Run

SAMPLE_MS = 0.2

__all__ = ["SAMPLE_MS", "Clock", "CpuClock", "CudaClock", "calls_per_sample", "clock_for"]


class Clock(Protocol):
    """What the driver asks of a clock."""

    has_cold: bool

    def warm(self, run: Run, calls: int) -> float:
        """Milliseconds a call, over `calls` calls back to back after one that does not count."""
        ...

    def cold(self, run: Run) -> float:
        """Milliseconds of one call that finds nothing in the cache."""
        ...


class CpuClock:
    """Wall time of the calling thread."""

    has_cold = False

    def warm(self, run: Run, calls: int) -> float:
        run()
        start = time.perf_counter_ns()
        for _ in range(calls):
            run()
        return (time.perf_counter_ns() - start) / 1e6 / calls

    def cold(self, run: Run) -> float:
        raise RuntimeError("the CPU clock has no cold samples")


class CudaClock:
    """Time between two events on the current stream of one device."""

    has_cold = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self._flush = torch.empty(2 * l2_bytes, dtype=torch.int8, device=device)

    def warm(self, run: Run, calls: int) -> float:
        run()
        return self._between_events(run, calls) / calls

    def cold(self, run: Run) -> float:
        self._flush.zero_()
        return self._between_events(run, 1)

    def _between_events(self, run: Run, calls: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            run()
        end.record()
        torch.cuda.synchronize(self.device)
        return start.elapsed_time(end)


def clock_for(device: torch.device) -> Clock:
    """The clock of a device."""
    return CudaClock(device) if device.type == "cuda" else CpuClock()


def calls_per_sample(clock: Clock, run: Run, *, sample_ms: float = SAMPLE_MS) -> int:
    """How many calls make a sample of at least `sample_ms`; a few calls are spent to find out."""
    shortest = min(clock.warm(run, 1) for _ in range(2))
    return max(1, math.ceil(sample_ms / max(shortest, 1e-6)))
