"""The result file: its schema, its writer and its validation.

`benchmarks/results/<device slug>/<package>.json` is written by the driver only. `load` refuses a file whose speed-ups
are not the quotients of its times, so an edited figure does not survive.
"""

import dataclasses
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

__all__ = ["CaseResult", "FactResult", "Result", "Roofline", "Times", "load", "merge", "save", "significant"]


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """`fraction` = time at the measured ceiling named by `bound` / time of ours."""

    bytes: float
    flops: float
    bound: str
    fraction: float


@dataclass(frozen=True, kw_only=True)
class Times:
    """Medians of another kind of sample than the warm ones."""

    ours_ms: float
    peers_ms: dict[str, float]
    speedup: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """One comparison: medians of `rounds` alternating samples, in milliseconds a call.

    `ours_ms` and `peers_ms` are warm; `cold` (with an empty cache) and `call` (on the host's clock, launches included)
    are measured on GPUs. The samples are those of `benchmarks.clock`. `bound_share` is the largest error of everyone as
    a share of what the case allows that element, where it allows each its own.
    """

    name: str
    tags: list[str]
    ours_ms: float
    peers_ms: dict[str, float]
    speedup: dict[str, float]
    max_rel_err: float
    rounds: int
    kernel: str = ""
    note: str = ""
    roofline: Roofline | None = None
    cold: Times | None = None
    call: Times | None = None
    quartiles_ms: dict[str, list[float]] = field(default_factory=dict)
    peers_rel_err: dict[str, float] = field(default_factory=dict)
    bound_share: dict[str, float] = field(default_factory=dict)
    peers_skipped: dict[str, str] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FactResult:
    """A measured value; `value` is the mean over `seeds`, `std` their sample standard deviation."""

    name: str
    value: float
    unit: str = ""
    target: str = ""
    met: bool | None = None
    seeds: list[int] = field(default_factory=list)
    mean: float | None = None
    std: float | None = None
    tags: list[str] = field(default_factory=list)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Everything one run measured, and where."""

    package: str
    device: str
    slug: str
    date: str
    commit: str
    threads: int
    versions: dict[str, Any]
    ceilings: dict[str, float] = field(default_factory=dict)
    cases: list[CaseResult] = field(default_factory=list)
    facts: list[FactResult] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)

    def validate(self) -> None:
        """Raise ValueError where the file contradicts itself."""
        for kind, items in (("case", self.cases), ("fact", self.facts)):
            names = [item.name for item in items]
            if doubled := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"{kind} names appear twice: {doubled}")
        for case in self.cases:
            _validate_times(case.name, case.ours_ms, case.peers_ms, case.speedup)
            for kind, times in (("cold", case.cold), ("call", case.call)):
                if times:
                    _validate_times(f"{case.name} ({kind})", times.ours_ms, times.peers_ms, times.speedup)
            if not case.peers_ms and not case.note and not case.peers_skipped:
                raise ValueError(f"{case.name}: no peer and no note that says why")
        for fact in self.facts:
            if not math.isfinite(fact.value):
                raise ValueError(f"{fact.name}: value is {fact.value}")


def _validate_times(name: str, ours: float, peers: dict[str, float], speedup: dict[str, float]) -> None:
    if not all(time > 0 and math.isfinite(time) for time in (ours, *peers.values())):
        raise ValueError(f"{name}: times must be positive, got ours {ours}, peers {peers}")
    if set(peers) != set(speedup):
        raise ValueError(f"{name}: speedup names {sorted(speedup)}, peers_ms names {sorted(peers)}")
    for peer, ratio in speedup.items():
        if not math.isclose(ratio, peers[peer] / ours, rel_tol=1e-4):
            raise ValueError(f"{name}: speedup[{peer!r}] is {ratio}, but {peers[peer]} / {ours} = {peers[peer] / ours}")


def significant(value: float, digits: int = 6) -> float:
    """`value` rounded to that many significant digits, so that files stay readable."""
    return float(f"{value:.{digits}g}")


def save(result: Result, path: Path) -> None:
    """Validate and write, atomically (an interrupted run leaves the previous file)."""
    result.validate()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    text = json.dumps(dataclasses.asdict(result), indent=1, allow_nan=False, ensure_ascii=False)
    partial.write_text(text + "\n", encoding="utf-8")
    os.replace(partial, path)


def load(path: Path) -> Result:
    """Read a result file; ValueError names what does not fit the schema."""
    try:
        result = _build(Result, json.loads(path.read_text(encoding="utf-8")), path.name)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    result.validate()
    return result


def merge(old: Result, new: Result) -> Result:
    """`new`, with the cases and facts of `old` that `new` did not run; both must come from one tree and one machine."""
    for name in ("package", "device", "slug", "commit", "threads", "versions"):
        if getattr(old, name) != getattr(new, name):
            raise ValueError(f"cannot merge: {name} was {getattr(old, name)!r}, is {getattr(new, name)!r}")
    ran = {item.name for item in (*new.cases, *new.facts)} | set(new.not_run)
    return dataclasses.replace(
        new,
        ceilings=old.ceilings | new.ceilings,
        cases=[case for case in old.cases if case.name not in ran] + new.cases,
        facts=[fact for fact in old.facts if fact.name not in ran] + new.facts,
        not_run={name: why for name, why in old.not_run.items() if name not in ran} | new.not_run,
    )


def _build(kind: Any, data: Any, where: str) -> Any:
    """`data` as `kind`: a dataclass, list, dict, optional or plain type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return data
    if origin is UnionType:
        if data is None and NoneType in arguments:
            return None
        return _build(next(choice for choice in arguments if choice is not NoneType), data, where)
    if origin is list and isinstance(data, list):
        return [_build(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(data)]
    if origin is dict and isinstance(data, dict):
        return {key: _build(arguments[1], item, f"{where}/{key}") for key, item in data.items()}
    if dataclasses.is_dataclass(kind) and isinstance(data, dict):
        hints = get_type_hints(kind)
        if unknown := sorted(set(data) - set(hints)):
            raise ValueError(f"{where}: unknown keys {unknown}")
        required = {f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING}
        if missing := sorted(required - set(data)):
            raise ValueError(f"{where}: missing keys {missing}")
        return kind(**{key: _build(hints[key], value, f"{where}/{key}") for key, value in data.items()})
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if isinstance(kind, type) and isinstance(data, kind) and (kind is bool or not isinstance(data, bool)):
        return data
    raise ValueError(f"{where}: expected {kind}, got {data!r}")
