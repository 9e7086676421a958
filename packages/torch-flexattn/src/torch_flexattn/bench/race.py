"""One case from start to end: everybody is prepared, everybody's results are compared with ours, then all are timed.

A peer that fails, or whose results are not ours, is recorded with the reason and the race goes on. Rounds alternate
between the contenders in an order drawn from a fixed seed, so that what one leaves behind hits all alike.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ..stats import stats
from ..tune.timing import Stopwatch
from . import contenders, masks
from .suites import Build, Case
from .task import make_task

LONGEST_MS = 2000.0
"""Timed of one contender: a slow one has fewer rounds, at least ``LEAST``."""
LEAST = 3
TOLERANCE = {torch.bfloat16: 0.04, torch.float16: 0.02, torch.float32: 1e-3}
"""Largest difference from our results, of their largest."""
Contender = tuple[Callable[[], Any], Callable[[Any], Sequence[Tensor]]]
"""What is timed, and what of its result is compared."""


@dataclass
class Result:
    """What became of a case.

    Attributes:
        name: of the case.
        ours_ms: median of our calls; ``None`` where we fail.
        kernel: which of our kernels served.
        peers_ms: medians of the peers.
        speedup: theirs by ours.
        differences: of their results from ours, of the largest.
        errors: of those that have no time, by name; ours is ``"ours"``.
    """

    name: str
    ours_ms: float | None = None
    kernel: str = ""
    peers_ms: dict[str, float] = field(default_factory=dict)
    speedup: dict[str, float] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def peers_of(case: Case, device: torch.device) -> tuple[str, ...]:
    """Who takes part by default."""
    if isinstance(case, Build):
        return ("torch_flex", "torch_flex_eager")
    if case.page:
        return ("contiguous",)
    if device.type == "cuda":
        return tuple(contenders.PEERS)
    return ("torch_flex", "flash", "math")


def race(case: Case, peers: Sequence[str], device: torch.device, dtype: torch.dtype, rounds: int) -> Result:
    """Race ours and the ``peers`` that a case may have."""
    result = Result(case.name)
    watch = Stopwatch(device)
    try:
        makers = _makers(case, device, dtype)
        run, seen = makers["ours"]()
        found = run()
        expected = [t.detach().float() for t in seen(found)]
        result.kernel = "" if isinstance(case, Build) else stats().kernel
    except Exception as error:  # recorded: the other cases go on
        result.errors["ours"] = reason(error)
        return result
    runs = {"ours": run}
    for name in peers:
        if name not in makers:
            result.errors[name] = "takes no part in such a case"
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # SDPA says why a backend refuses, then raises
                run, seen = makers[name]()
                off = difference(seen(run()), expected)
            if not off <= TOLERANCE[dtype]:
                result.errors[name] = f"its results differ from ours by {off:.3g} of the largest"
                continue
            result.differences[name], runs[name] = off, run
        except Exception as error:  # a peer may fail in any way
            result.errors[name] = reason(error)
            if device.type == "cuda":
                torch.cuda.empty_cache()
    times, failed = alternate(watch, runs, rounds)
    result.errors |= failed
    if "ours" in times:
        result.ours_ms = median(times.pop("ours"))
        result.peers_ms = {name: median(found) for name, found in times.items()}
        result.speedup = {name: ms / result.ours_ms for name, ms in result.peers_ms.items()}
    return result


def alternate(
    watch: Stopwatch, runs: Mapping[str, Callable[[], Any]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Milliseconds of each, one call a round in random order; and the reasons of those that failed.

    The first round does not count.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    failed: dict[str, str] = {}
    order = random.Random(0)
    for turn in range(rounds + 1):
        for name in order.sample(list(times), len(times)):
            if len(times[name]) >= LEAST and sum(times[name]) > LONGEST_MS:
                continue
            try:
                ms = watch.once(runs[name])
            except Exception as error:  # as before: recorded
                failed[name] = reason(error)
                del times[name]
                continue
            if turn:
                times[name].append(ms)
    return times, failed


def difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest, of the largest number of each tensor; infinite where shapes or finiteness differ."""
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        one = one.detach().float()
        if one.shape != other.shape or not torch.equal(one.isfinite(), other.isfinite()):
            return float("inf")
        if other.numel():
            there = other.isfinite()
            most = other[there].abs().max().clamp(min=1e-6)
            worst = max(worst, float((one - other)[there].abs().max() / most))
    return worst


def reason(error: Exception) -> str:
    """Type and first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _makers(case: Case, device: torch.device, dtype: torch.dtype) -> dict[str, Callable[[], Contender]]:
    if isinstance(case, Build):
        found = {
            "ours": partial(masks.ours, case, device),
            "torch_flex": partial(masks.torch_flex, case, device, compiled=True),
            "torch_flex_eager": partial(masks.torch_flex, case, device, compiled=False),
        }
        return {name: partial(_with, make, masks.blocks_of) for name, make in found.items()}
    task = make_task(case, device, dtype)
    prepared: dict[str, contenders.Prepare] = {"ours": contenders.ours}
    prepared |= {"contiguous": contenders.contiguous} if case.page else contenders.PEERS
    made = {
        name: partial(contenders.backward, prepare, task) if case.backward else partial(prepare, task)
        for name, prepare in prepared.items()
    }
    return {name: partial(_with, make, contenders.results_of) for name, make in made.items()}


def _with(make: Callable[[], Callable[[], Any]], seen: Callable[[Any], Sequence[Tensor]]) -> Contender:
    return make(), seen
