"""The two clocks. Each gives milliseconds a call; a sample repeats short calls until it is long enough to trust.

CPU: `time.perf_counter_ns`. CUDA: events on the current stream. A *warm* sample begins with calls off the clock, so
that caches, thread pools and allocators are as the contender itself leaves them, not as the one before it did. On CUDA
it is time of the device alone: a sleep in front lets the host queue every call before the first one starts. A *cold*
sample (CUDA) is the same for one call, after a buffer of twice the L2 has been overwritten. A *call* sample (CUDA) is
what a loop in Python gets, launches included, by the host's clock.
"""

import math
import time
from typing import Protocol

import torch

from benchmarks.case import Run

SAMPLE_MS = 0.2
CYCLES_PER_MS = 2_500_000  # of `torch.cuda._sleep`; more than any GPU's clock, so that the sleep is never too short

__all__ = ["SAMPLE_MS", "Clock", "CpuClock", "CudaClock", "calls_per_sample", "clock_for"]


class Clock(Protocol):
    """What the driver asks of a clock."""

    asynchronous: bool

    def warm(self, run: Run, calls: int) -> float:
        """Milliseconds a call, over `calls` calls back to back after some that do not count."""
        ...

    def cold(self, run: Run) -> float:
        """Milliseconds of one call that finds nothing in the cache (asynchronous devices)."""
        ...

    def call(self, run: Run, calls: int) -> float:
        """Milliseconds a call on the host's clock, launches included (asynchronous devices)."""
        ...


class CpuClock:
    """Wall time of the calling thread."""

    asynchronous = False

    def warm(self, run: Run, calls: int) -> float:
        run()
        return _host_ms(run, calls) / calls

    def cold(self, run: Run) -> float:
        raise RuntimeError("the CPU clock has no cold samples")

    def call(self, run: Run, calls: int) -> float:
        raise RuntimeError("the CPU clock has no call samples: warm ones are just that")


class CudaClock:
    """Time between two events on the current stream of one device."""

    asynchronous = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self._flush = torch.empty(2 * l2_bytes, dtype=torch.int8, device=device)

    def warm(self, run: Run, calls: int) -> float:
        host_ms = _host_ms(run, calls)
        torch.cuda.synchronize(self.device)
        return self._between_events(run, calls, host_ms) / calls

    def cold(self, run: Run) -> float:
        host_ms = _host_ms(run, 1)
        torch.cuda.synchronize(self.device)
        self._flush.zero_()
        return self._between_events(run, 1, host_ms)

    def call(self, run: Run, calls: int) -> float:
        run()
        torch.cuda.synchronize(self.device)
        start = time.perf_counter_ns()
        for _ in range(calls):
            run()
        torch.cuda.synchronize(self.device)
        return (time.perf_counter_ns() - start) / 1e6 / calls

    def _between_events(self, run: Run, calls: int, host_ms: float) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(int(1.5 * host_ms * CYCLES_PER_MS))
        start.record()
        for _ in range(calls):
            run()
        end.record()
        torch.cuda.synchronize(self.device)
        return start.elapsed_time(end)


def _host_ms(run: Run, calls: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        run()
    return (time.perf_counter_ns() - start) / 1e6


def clock_for(device: torch.device) -> Clock:
    """The clock of a device."""
    return CudaClock(device) if device.type == "cuda" else CpuClock()


def calls_per_sample(clock: Clock, run: Run, *, sample_ms: float = SAMPLE_MS) -> int:
    """How many calls make a sample of at least `sample_ms`; a few calls are spent to find out."""
    run()
    shortest = min(clock.warm(run, 1) for _ in range(2))
    return max(1, math.ceil(sample_ms / max(shortest, 1e-6)))
