"""The fastest kernels of a call: looked up, or found by timing all candidates once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..kernels.fitting import described
from ..kernels.passes import Name, Pass
from .candidates import Candidate, candidates
from .key import key_of
from .progress import Progress
from .store import forget, store
from .timing import Stopwatch

ROUNDS = 5
"""Timed calls of a candidate."""
FAR = 5.0
"""Times as long as the fastest: one call is enough to know."""
AGREEMENT = 0.04
"""Largest difference of results, of their largest: a candidate that is further off is wrong, not rounded."""
KNOWN: dict[str, Candidate] = {}
"""Winners that calls of this process had."""
_heard: list[Callable[[str, list[Trial]], None]] = []


@dataclass(frozen=True)
class Trial:
    """What became of a candidate.

    Attributes:
        candidate: which.
        ms: of a call; ``None`` where there is none.
        error: why not.
    """

    candidate: Candidate
    ms: float | None
    error: str = ""


def winner_of(call: Pass, names: Sequence[Name], *, time: bool) -> Candidate | None:
    """The fastest candidate that is known.

    Args:
        call: whose.
        names: kernels that can serve it, the best first.
        time: whether to find it where it is not known; not while a CUDA graph is captured.

    Returns:
        ``None`` where it is not known.

    Raises:
        UnsupportedError: no candidate runs.
    """
    key = key_of(call, names)
    found = None if _heard else KNOWN.get(key) or _kept(key, call, names)
    if found is None and time and _can_be_timed(call.features[0]):
        timed = trials(replace(call, again=None), names)
        for listener in _heard:
            listener(key, timed)
        best = best_of(timed, call)
        found = best.candidate
        store().put(key, {"kernel": found.kernel, "tiles": asdict(found.tiles), "ms": best.ms})
    if found is not None:
        KNOWN[key] = found
    return found


@contextmanager
def timed_anew(listener: Callable[[str, list[Trial]], None]) -> Iterator[None]:
    """Calls inside that tune do so even where a winner is known; ``listener`` is told its key and what was timed."""
    _heard.append(listener)
    try:
        yield
    finally:
        _heard.remove(listener)


def forget_winners() -> None:
    """Look on disk again."""
    KNOWN.clear()
    forget()


def _can_be_timed(q: Tensor) -> bool:
    return q.numel() > 0 and not (q.is_cuda and torch.cuda.is_current_stream_capturing())


def _kept(key: str, call: Pass, names: Sequence[Name]) -> Candidate | None:
    """The winner on disk; ``None`` where that is no candidate: of an older version, or damaged."""
    kept = store().get(key)
    if kept is None:
        return None
    return next((c for c in candidates(call, names) if c.kernel == kept.get("kernel") and _is(c.tiles, kept)), None)


def _is(tiles: Any, kept: dict[str, Any]) -> bool:
    return json.loads(json.dumps(asdict(tiles))) == kept.get("tiles")


def trials(call: Pass, names: Sequence[Name]) -> list[Trial]:
    """Times every candidate; results that differ from those of the first that runs, and failures, have no time."""
    found: list[Trial] = []
    listed = candidates(call, names)
    progress = Progress(f"timing attention {'backward' if call.backward else 'forward'}", len(listed))
    watch = Stopwatch(call.features[0].device)
    expected: list[Tensor] | None = None
    for candidate in listed:
        progress.step(str(candidate))
        fastest = min((t.ms for t in found if t.ms is not None), default=float("inf"))
        try:
            results = _tensors(call.run(candidate.kernel, candidate.tiles))
            expected = expected or results
            if not _agree(results, expected):
                found.append(Trial(candidate, None, "its results differ"))
                continue
            del results
            ms = watch.once(lambda: call.run(candidate.kernel, candidate.tiles))  # noqa: B023
            if ms < FAR * fastest:
                ms = watch.median(lambda: call.run(candidate.kernel, candidate.tiles), ROUNDS)  # noqa: B023
            found.append(Trial(candidate, ms))
        except Exception as error:  # whatever a compiler says of tiles that it cannot make
            lines = str(error).strip().splitlines()
            found.append(Trial(candidate, None, f"{type(error).__name__}: {lines[0] if lines else ''}"))
    timed = [t for t in found if t.ms is not None]
    progress.close(str(min(timed, key=lambda t: t.ms or 0.0).candidate) if timed else "none runs")
    return found


def best_of(found: Sequence[Trial], call: Pass) -> Trial:
    """The fastest.

    Raises:
        UnsupportedError: none has a time.
    """
    timed = [t for t in found if t.ms is not None]
    if not timed:
        raise UnsupportedError(f"autotune: no tile runs: {described(call)} ({found[0].error})")
    return min(timed, key=lambda t: t.ms or 0.0)


def _tensors(results: Any) -> list[Tensor]:
    flat: list[Tensor] = []
    for result in results:
        if isinstance(result, Tensor):
            flat.append(result)
        elif result is not None:
            flat += _tensors(result)
    return flat


def _agree(results: list[Tensor], expected: list[Tensor]) -> bool:
    """Of the features' results; ``lse`` may hold −inf, which must be at the same places."""
    for one, other in zip(results, expected, strict=True):
        there = other.isfinite()
        if not torch.equal(one.isfinite(), there):
            return False
        if there.any():
            difference = torch.where(there, one.float() - other.float(), 0).abs().max()
            if not float(difference) <= AGREEMENT * max(float(other[there].float().abs().max()), 1e-6):
                return False
    return True
