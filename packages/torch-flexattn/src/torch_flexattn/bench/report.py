"""Results as a table in text, and as JSON with what they were measured on."""

from __future__ import annotations

import datetime
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

from .race import Result

COLUMN = 20
"""Of a peer, at least."""
MEAN = "geometric mean"
SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
VERSIONS = ("torch", "triton", "torch-flexattn", "flash-attn", "flash-attn-3", "fa3-fwd", "flashinfer-python")


@dataclass(frozen=True)
class Table:
    """How results are printed.

    Attributes:
        peers: who has a column.
        width: of the names of cases.
        has_memory: whether our memory has a column.
    """

    peers: Sequence[str]
    width: int
    has_memory: bool = False

    def heading(self) -> str:
        """The first line."""
        names = [f"{name} ms (×)" for name in self.peers]
        return self._line("case", "ours ms", "kernel", "rate", "MiB", names)

    def line(self, result: Result) -> str:
        """One case: our milliseconds, and each peer's with theirs by ours."""
        own = "failed" if result.ours_ms is None else f"{result.ours_ms:.3f}"
        peak = f"{result.peak_bytes['ours'] / 2**20:,.1f}" if "ours" in result.peak_bytes else "–"
        cells = []
        for name in self.peers:
            ms = result.peers_ms.get(name)
            cells.append("–" if ms is None else f"{ms:.3f} ({result.speedup[name]:.2f}×)")
        return self._line(result.name, own, result.kernel, _rate(result), peak, cells)

    def means(self, results: Sequence[Result]) -> str:
        """The last line; each mean is over the cases that have a time of the peer."""
        found = means(results, self.peers)
        cells = [f"({found[name]:.2f}×)" if name in found else "–" for name in self.peers]
        return self._line(MEAN, "", "", "", "", cells)

    def _line(self, name: str, own: str, kernel: str, rate: str, memory: str, cells: Sequence[str]) -> str:
        peak = f"{memory:>9}" if self.has_memory else ""
        widths = (max(COLUMN, len(peer) + 8) for peer in self.peers)
        columns = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        return f"{name:<{max(self.width, len(MEAN))}} {own:>10} {kernel:<8}{rate:>11}{peak}{columns}"


def means(results: Sequence[Result], peers: Sequence[str]) -> dict[str, float]:
    """Geometric means of how many times our time each peer takes, over the cases that it was timed in."""
    found = {name: [r.speedup[name] for r in results if name in r.speedup] for name in peers}
    return {name: math.exp(sum(map(math.log, ratios)) / len(ratios)) for name, ratios in found.items() if ratios}


def reasons(results: Sequence[Result], absent: Mapping[str, str]) -> list[str]:
    """Why somebody has no time, once a reason: first those that this machine does not have."""
    cases: dict[tuple[str, str], list[str]] = {}
    for result in results:
        for name, error in result.errors.items():
            cases.setdefault((name, error), []).append(result.name)
    together: dict[tuple[str, ...], list[str]] = {}
    for (name, error), where in cases.items():
        together.setdefault((error, *where), []).append(name)
    lines = [f"not measured: {name}: {why}" for name, why in absent.items()]
    for (error, first, *others), who in together.items():
        more = f" and {len(others)} more" if others else ""
        lines.append(f"not measured: {', '.join(who)}: {error} ({first}{more})")
    return lines


def setting(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """What was measured on, and when."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "dtype": str(dtype).removeprefix("torch."),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {
            **{name: _version(name) for name in VERSIONS},
            "cuda": torch.version.cuda if device.type == "cuda" else None,
            "cudnn": torch.backends.cudnn.version() if device.type == "cuda" else None,
        },
    }


def as_json(
    found: Mapping[str, Sequence[Result]],
    quick: bool,
    device: torch.device,
    dtype: torch.dtype,
    rounds: int,
    absent: Mapping[str, str],
) -> dict[str, Any]:
    """Everything.

    Args:
        found: results by suite.
        quick: of small cases.
        device: that they ran on.
        dtype: of the features.
        rounds: that were wanted of each; a slow contender has fewer, see each case.
        absent: why peers were not measured at all.
    """
    ratios = {
        suite: means(results, list(dict.fromkeys(n for r in results for n in r.speedup)))
        for suite, results in found.items()
    }
    return {
        "suite": ",".join(found),
        "quick": quick,
        **setting(device, dtype),
        "rounds": rounds,
        "not_measured": dict(absent),
        "geometric_means": ratios,
        "cases": [{"suite": suite, **result.as_dict()} for suite, results in found.items() for result in results],
    }


def _rate(result: Result) -> str:
    """Bytes a second where they bound, else operations."""
    for name, unit in (("bytes_per_s", "B/s"), ("flops_per_s", "F/s")):
        if name in result.rates:
            rate = result.rates[name]
            scale, letter = next(((s, w) for s, w in SCALES if rate >= s), SCALES[-1])
            return f"{rate / scale:.3g} {letter}{unit}"
    return ""


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
