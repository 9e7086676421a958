"""Time calls beside each other on one device: medians of samples taken in turns.

In turns, so that a clock that drifts or a busy neighbour hits all alike. A sample repeats its call until it lasts long
enough to be read. On a GPU time is taken between two events on the current stream.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch

T = TypeVar("T")
Call = Callable[[], object]
SAMPLE_US = 500.0
LONGEST_SAMPLE = 200
"""Calls of a sample, at most."""


def medians_us(calls: Mapping[str, Call], device: torch.device, *, rounds: int = 10) -> dict[str, float]:
    """Median microseconds of each call.

    Args:
        calls: what to run, by name.
        device: where they run.
        rounds: samples of each.

    Example:
        >>> medians = medians_us({"sum": lambda: torch.ones(8).sum()}, torch.device("cpu"), rounds=3)
        >>> medians["sum"] > 0
        True
    """
    return {name: statistics.median(taken) for name, taken in samples_us(calls, device, rounds=rounds).items()}


def samples_us(calls: Mapping[T, Call], device: torch.device, *, rounds: int = 10) -> dict[T, list[float]]:
    """Microseconds of each call in each round; what was taken in one round may be compared."""
    samples: dict[T, list[float]] = {name: [] for name in calls}
    names, order = list(calls), random.Random(0)
    with _current(device):
        repeats = {name: _repeats(call, device) for name, call in calls.items()}
        for _ in range(rounds):
            order.shuffle(names)
            for name in names:
                calls[name]()
                samples[name].append(_elapsed_us(calls[name], device, repeats[name]) / repeats[name])
    return samples


def kernel_medians_us(calls: Mapping[str, Call], device: torch.device, *, rounds: int = 10) -> dict[str, float]:
    """As :func:`medians_us`, without the time that launching takes on a GPU: calls are replayed from CUDA graphs."""
    taken = kernel_samples_us(calls, device, rounds=rounds)
    return {name: statistics.median(samples) for name, samples in taken.items()}


def kernel_samples_us(calls: Mapping[T, Call], device: torch.device, *, rounds: int = 10) -> dict[T, list[float]]:
    """As :func:`samples_us`, without the time that launching takes on a GPU: calls are replayed from CUDA graphs."""
    if device.type != "cuda":
        return samples_us(calls, device, rounds=rounds)
    repeats = 10
    with _current(device):
        replays = {name: _captured(call, repeats) for name, call in calls.items()}
    taken = samples_us(replays, device, rounds=rounds)
    return {name: [us / repeats for us in samples] for name, samples in taken.items()}


def _captured(call: Call, repeats: int) -> Call:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call()
    return graph.replay


def _current(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _repeats(call: Call, device: torch.device) -> int:
    call()
    shortest = min(_elapsed_us(call, device, 1) for _ in range(2))
    return min(LONGEST_SAMPLE, max(1, math.ceil(SAMPLE_US / max(shortest, 1e-3))))


def _elapsed_us(call: Call, device: torch.device, repeats: int) -> float:
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3
    begin = time.perf_counter_ns()
    for _ in range(repeats):
        call()
    return (time.perf_counter_ns() - begin) / 1e3
