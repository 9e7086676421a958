"""Find a value in a result file by its path, with its unit: what a quoted figure points at.

========================================== =========================================================
``cases/NAME/ours_ms``                     also ``max_rel_err``, ``rounds``, ``roofline/fraction``
``cases/NAME/speedup/PEER``                also ``peers_ms/PEER``, ``peak_bytes/PEER``, ``cold/speedup/PEER``
``cases/NAME/speedup/best``                against the fastest peer of that case
``tags/TAG/speedup/PEER/geomean``          over the cases with that tag; also ``min``, ``max``; ``PEER`` may be ``best``
``facts/NAME/value``                       also ``mean``, ``std``
========================================== =========================================================
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.result import Result
from benchmarks.table import geometric_mean

__all__ = ["lookup"]

_SUMMARY = {"geomean": geometric_mean, "min": min, "max": max}


def lookup(result: Result, path: str) -> tuple[float, str]:
    """Value and unit at a path.

    Raises:
        KeyError: nothing there; the message says what is.
    """
    kind, _, rest = path.partition("/")
    if kind == "facts":
        fact, keys = _named(result.facts, rest, path)
        return _number(getattr(fact, keys[0], None) if len(keys) == 1 else None, path), fact.unit
    if kind == "cases":
        case, keys = _named(result.cases, rest, path)
        return _number(_walk(dataclasses.asdict(case), keys), path), _unit(keys)
    if kind == "tags":
        return _summary(result, rest.split("/"), path), "×"
    raise KeyError(f"{path}: starts with {kind!r}, not with cases, facts or tags")


def _named(items: Sequence[Any], rest: str, path: str) -> tuple[Any, list[str]]:
    """The item whose name begins `rest` (names contain slashes: the longest wins), and the keys after it."""
    fitting = [item for item in items if rest.startswith(item.name + "/")]
    if not fitting:
        raise KeyError(f"{path}: no such name among {[item.name for item in items]}")
    item = max(fitting, key=lambda item: len(item.name))
    return item, rest[len(item.name) + 1 :].split("/")


def _walk(value: Any, keys: Sequence[str]) -> Any:
    for position, key in enumerate(keys):
        if not isinstance(value, Mapping):
            return None
        best = key == "best" and position > 0 and keys[position - 1] == "speedup" and value
        value = min(value.values()) if best else value.get(key)
    return value


def _summary(result: Result, keys: Sequence[str], path: str) -> float:
    if len(keys) != 4 or keys[1] != "speedup" or keys[3] not in _SUMMARY:
        raise KeyError(f"{path}: expected tags/TAG/speedup/PEER/({'|'.join(_SUMMARY)})")
    tag, _, peer, how = keys
    ratios = [_walk(dataclasses.asdict(case), ["speedup", peer]) for case in result.cases if tag in case.tags]
    present = [ratio for ratio in ratios if isinstance(ratio, float)]
    if not present:
        raise KeyError(f"{path}: no case tagged {tag!r} has peer {peer!r}")
    return _SUMMARY[how](present)


def _number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise KeyError(f"{path}: no number there, but {value!r}")
    return float(value)


def _unit(keys: Sequence[str]) -> str:
    if "speedup" in keys:
        return "×"
    if "peak_bytes" in keys:
        return "B"
    return "ms" if any(key.endswith("_ms") for key in keys) else ""
