"""One case, start to end: prepare everyone, check everyone, then time everyone in turns.

Ours is refused when it is wrong; a peer that is missing, fails or is wrong is recorded with its reason and the race
goes on without it. Every round gives each contender one sample, in an order that is drawn anew (from a fixed seed), so
that clock drift, busy neighbours and what the previous contender left behind hit all alike.
"""

import gc
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from statistics import median, quantiles, stdev
from typing import Any

import torch

from benchmarks.case import Case, Fact, Outputs, Run, Runner, Skip, Tolerance
from benchmarks.ceilings import Ceilings
from benchmarks.check import bound_share, relative_error
from benchmarks.clock import Clock, calls_per_sample
from benchmarks.result import CaseResult, FactResult, Times, significant

OURS = "ours"

__all__ = ["DeviceLost", "Refused", "alternate", "meets", "measure_fact", "reason", "run_case"]


class Refused(Exception):
    """Ours is wrong, so its time means nothing."""


class DeviceLost(RuntimeError):
    """A peer broke the CUDA context: nothing can be measured in this process any more."""


@dataclass
class _Contender:
    run: Run
    calls: int
    error: float
    share: float | None
    peak_bytes: int | None


def run_case(
    case: Case, device: torch.device, clock: Clock, ceilings: Ceilings, *, rounds: int, without: Sequence[str] = ()
) -> CaseResult:
    """Check and time one case.

    Raises:
        Refused: ours fails or differs from the reference, before or after timing.
    """
    inputs = case.make(device)
    reference = case.reference(inputs)

    @cache
    def allowed(tolerance: Tolerance) -> float | Outputs:
        return tolerance(inputs) if callable(tolerance) else tolerance

    def judge(outputs: Outputs, tolerance: float | Outputs) -> tuple[float, float | None]:
        return _judge(case.compared(inputs, outputs) if case.compared else outputs, reference, tolerance)

    skipped = {name: peer.reason for name, peer in case.peers.items() if isinstance(peer, Skip)}
    skipped |= {name: "left out by --without" for name in case.peers if name in without}
    contenders: dict[str, _Contender] = {}
    runners = {OURS: case.ours} | {name: peer for name, peer in case.peers.items() if name not in skipped}
    for name, runner in runners.items():
        tolerance = allowed(case.peer_tolerance.get(name, case.tolerance))
        try:
            contenders[name] = _admit(runner, inputs, judge, tolerance, device, clock)
        except Exception as error:  # a peer may fail in any way; ours may not
            if name == OURS:
                raise Refused(f"{case.name}: {reason(error)}") from error
            skipped[name] = reason(error)
            _raise_if_device_is_lost(device, name)

    def time(sampler: Callable[[_Contender], float], names: Iterable[str]) -> dict[str, list[float]]:
        times, failed = alternate({name: partial(sampler, contenders[name]) for name in names}, rounds)
        if OURS in failed:
            raise Refused(f"{case.name}: failed while timed: {failed[OURS]}")
        skipped.update(failed)
        return times

    warm = time(lambda entry: clock.warm(entry.run, entry.calls), contenders)
    cold = time(lambda entry: clock.cold(entry.run), warm) if clock.asynchronous else None
    call = time(lambda entry: clock.call(entry.run, entry.calls), cold) if cold else None
    try:
        judge(contenders[OURS].run(), allowed(case.tolerance))
    except ValueError as error:
        raise Refused(f"{case.name}: right before timing, not after it: {error}") from error

    medians = _medians(warm, skipped)
    ours_ms = medians.pop(OURS)
    kept = {name: contenders[name] for name in (OURS, *medians)}
    return CaseResult(
        name=case.name,
        tags=list(case.tags),
        ours_ms=ours_ms,
        peers_ms=medians,
        speedup=_speedup(ours_ms, medians),
        max_rel_err=significant(contenders[OURS].error, 3),
        rounds=rounds,
        kernel=case.kernel(inputs) if callable(case.kernel) else case.kernel,
        note=case.note,
        roofline=ceilings.roofline(case, inputs, ours_ms),
        cold=_times(cold, skipped),
        call=_times(call, skipped),
        quartiles_ms={name: _quartiles(warm[name]) for name in kept},
        peers_rel_err={name: significant(contenders[name].error, 3) for name in medians},
        bound_share={name: significant(entry.share, 3) for name, entry in kept.items() if entry.share is not None},
        peers_skipped=skipped,
        peak_bytes={name: entry.peak_bytes for name, entry in kept.items() if entry.peak_bytes is not None},
    )


def alternate(
    samplers: Mapping[str, Callable[[], float]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """One sample of each a round, in random order; returns the times, and the reasons of those that failed."""
    times: dict[str, list[float]] = {name: [] for name in samplers}
    failed: dict[str, str] = {}
    order = random.Random(0)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for name in order.sample(list(times), len(times)):
                try:
                    times[name].append(samplers[name]())
                except Exception as error:
                    failed[name] = reason(error)
                    del times[name]
    finally:
        if collecting:
            gc.enable()
    return times, failed


def reason(error: Exception) -> str:
    """Type and first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def measure_fact(fact: Fact, device: torch.device) -> FactResult:
    """Measure a fact once a seed."""
    values = [float(fact.measure(device, seed)) for seed in fact.seeds]
    value = significant(math.fsum(values) / len(values))
    several = len(values) > 1
    return FactResult(
        name=fact.name,
        value=value,
        unit=fact.unit,
        target=fact.target,
        met=meets(value, fact.target) if fact.target else None,
        seeds=list(fact.seeds),
        mean=value if several else None,
        std=significant(stdev(values)) if several else None,
        tags=list(fact.tags),
        note=fact.note,
    )


def meets(value: float, target: str) -> bool:
    """Whether a value meets a target.

    >>> meets(123, "<= 150"), meets(0.9, ">= 0.95"), meets(-0.3, "within 0.5 of 0")
    (True, False, True)
    """
    match target.split():
        case ["<=", bound]:
            return value <= float(bound)
        case [">=", bound]:
            return value >= float(bound)
        case ["within", reach, "of", centre]:
            return abs(value - float(centre)) <= float(reach)
    raise ValueError(f"target must read '<= NUMBER', '>= NUMBER' or 'within NUMBER of NUMBER', got {target!r}")


def _judge(outputs: Outputs, reference: Outputs, tolerance: float | Outputs) -> tuple[float, float | None]:
    """The relative error, and the share of the bound where elements have bounds; ValueError beyond what is allowed."""
    error = relative_error(outputs, reference)
    if isinstance(tolerance, int | float):
        if not error <= tolerance:
            raise ValueError(f"differs from the reference: error {error:.3g} > {tolerance:.3g}")
        return error, None
    share = bound_share(outputs, reference, tolerance)
    if not share <= 1:
        raise ValueError(f"differs from the reference: {share:.3g} times what is allowed, relative error {error:.3g}")
    return error, share


def _admit(
    runner: Runner,
    inputs: Any,
    judge: Callable[[Outputs, float | Outputs], tuple[float, float | None]],
    tolerance: float | Outputs,
    device: torch.device,
    clock: Clock,
) -> _Contender:
    run = runner(inputs)
    peak = None
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    outputs = run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device) - before
    error, share = judge(outputs, tolerance)
    return _Contender(run, calls_per_sample(clock, run), error, share, peak)


def _raise_if_device_is_lost(device: torch.device, peer: str) -> None:
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError as error:
            raise DeviceLost(f"peer {peer!r} broke the CUDA context; run again with --without {peer}") from error


def _medians(times: Mapping[str, Sequence[float]], skipped: Mapping[str, str]) -> dict[str, float]:
    return {name: significant(median(samples)) for name, samples in times.items() if name not in skipped}


def _speedup(ours_ms: float, peers_ms: Mapping[str, float]) -> dict[str, float]:
    return {name: significant(time / ours_ms) for name, time in peers_ms.items()}


def _times(times: Mapping[str, Sequence[float]] | None, skipped: Mapping[str, str]) -> Times | None:
    if times is None:
        return None
    peers = _medians(times, skipped)
    ours_ms = peers.pop(OURS)
    return Times(ours_ms=ours_ms, peers_ms=peers, speedup=_speedup(ours_ms, peers))


def _quartiles(samples: Sequence[float]) -> list[float]:
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return [significant(low), significant(high)]
