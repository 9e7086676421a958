"""One case from start to end: everybody is prepared, everybody's results are compared with ours, then all are timed.

A peer that fails, or whose results are not ours, is recorded with the reason and the race goes on. Rounds alternate
between the contenders in an order drawn from a fixed seed, so that what one leaves behind hits all alike.
"""

from __future__ import annotations

import random
import re
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
from .memory import peak_bytes
from .peer import Peer
from .suites import Build, Case
from .task import TakesNoPart, make_task
from .torch_peers import forget_compiled
from .work import work_of

LONGEST_MS = 2000.0
"""Timed of one contender: a slow one has fewer rounds, at least ``LEAST``."""
LEAST = 3
TOLERANCE = {torch.bfloat16: 0.04, torch.float16: 0.02, torch.float32: 1e-3}
"""Largest difference from our results, of their largest."""
MOST_WORDS = 3
"""Of what a backend said before it failed."""


@dataclass(frozen=True)
class Contender:
    """Somebody at the start.

    Attributes:
        run: what is timed.
        seen: what of its result is compared.
        is_partial: it has the first results alone.
    """

    run: Callable[[], Any]
    seen: Callable[[Any], Sequence[Tensor]]
    is_partial: bool = False


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
        rounds: calls that were timed, by name; ours is ``"ours"``.
        rates: of our median: ``"flops_per_s"`` of visible pairs and, in decoding, ``"bytes_per_s"``.
        peak_bytes: the most a call held of a GPU's memory beyond what was there, by name; empty on a CPU.
        errors: of those that have no time, by name.
    """

    name: str
    ours_ms: float | None = None
    kernel: str = ""
    peers_ms: dict[str, float] = field(default_factory=dict)
    speedup: dict[str, float] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def unheard(name: str) -> None:
    """Nobody wants to know who is next."""


def race(
    case: Case, peers: Sequence[str], device: torch.device, dtype: torch.dtype, rounds: int,
    heard: Callable[[str], None] = unheard,
) -> Result:  # fmt: skip
    """Race ours and the ``peers`` that a case may have; ``heard`` is told who is next."""
    result = Result(case.name)
    watch = Stopwatch(device)
    forget_compiled()
    try:
        heard("ours")
        makers, rates = _makers(case, peers, device, dtype)
        ours = makers["ours"]()
        found = ours.run()
        expected = [t.detach().float() for t in ours.seen(found)]
        del found
        result.kernel = "" if isinstance(case, Build) else stats().kernel
        _note_peak(result, "ours", ours.run, device)
    except Exception as error:  # recorded: the other cases go on
        result.errors["ours"] = reason(error)
        return result
    runs = {"ours": ours.run}
    for name in peers:
        heard(name)
        said: list[warnings.WarningMessage] = []
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")  # SDPA says why a backend refuses, then raises
                peer = makers[name]()
                found = peer.seen(peer.run())
                off = difference(found, expected[: len(found)] if peer.is_partial else expected)
            del found
            if not off <= TOLERANCE[dtype]:
                result.errors[name] = f"its results differ from ours by {off:.3g} of the largest"
                continue
            _note_peak(result, name, peer.run, device)
            result.differences[name], runs[name] = off, peer.run
        except Exception as error:  # a peer may fail in any way
            result.errors[name] = reason(error, said)
            if device.type == "cuda":
                torch.cuda.empty_cache()
    heard("all in turns")
    times, failed = alternate(watch, runs, rounds)
    result.errors |= failed
    result.rounds = {name: len(found) for name, found in times.items()}
    if "ours" in times:
        result.ours_ms = median(times.pop("ours"))
        result.rates = rates(result.ours_ms)
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


def reason(error: Exception, said: Sequence[warnings.WarningMessage] = ()) -> str:
    """Type and first line of an error, and what was said before it, such as why a backend cannot serve."""
    if isinstance(error, TakesNoPart):
        return str(error)
    lines = str(error).strip().splitlines()
    told = f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
    words = [
        re.sub(r" \(Triggered internally.*", "", str(w.message), flags=re.DOTALL).strip()
        for w in said
        if issubclass(w.category, UserWarning)
    ]
    causes = [w for w in dict.fromkeys(words) if w and not re.search(r"because:$|runtime disabled", w)]
    return " | ".join([told, *(cause.splitlines()[0][:200] for cause in causes[:MOST_WORDS])])


def _note_peak(result: Result, name: str, run: Callable[[], Any], device: torch.device) -> None:
    peak = peak_bytes(run, device)
    if peak is not None:
        result.peak_bytes[name] = peak


def _makers(
    case: Case, peers: Sequence[str], device: torch.device, dtype: torch.dtype
) -> tuple[dict[str, Callable[[], Contender]], Callable[[float], dict[str, float]]]:
    """How each gets to the start, and our rates by our time."""
    if isinstance(case, Build):
        builders: dict[str, masks.Builder] = {"ours": masks.ours, **masks.PEERS}
        return {name: partial(_building, make, case, device) for name, make in builders.items()}, lambda ms: {}
    task = make_task(case, device, dtype)

    def attending(peer: Peer) -> Contender:
        own = peer.laid(task)
        run = contenders.backward(peer.prepare, own) if case.backward else peer.prepare(own)
        return Contender(run, contenders.results_of, peer.is_partial)

    chosen = {"ours": Peer(contenders.ours), **{name: contenders.PEERS[name] for name in peers}}
    return {name: partial(attending, peer) for name, peer in chosen.items()}, lambda ms: work_of(task).rates(ms)


def _building(make: masks.Builder, case: Build, device: torch.device) -> Contender:
    return Contender(make(case, device), masks.blocks_of)
