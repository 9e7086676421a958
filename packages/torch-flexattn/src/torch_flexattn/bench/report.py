"""Results as a table in text, and as JSON with what they were measured on."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import torch

from .race import Result

WIDTH = 44
"""Of the names of cases."""
COLUMN = 20


def heading(peers: Sequence[str]) -> str:
    """The first line of the table."""
    return f"{'case':<{WIDTH}} {'ours ms':>10} {'kernel':<7}" + "".join(
        f"{name + ' ms (×)':>{COLUMN}}" for name in peers
    )


def line_of(result: Result, peers: Sequence[str]) -> str:
    """One case: our milliseconds, and each peer's with theirs by ours."""
    own = "failed" if result.ours_ms is None else f"{result.ours_ms:.3f}"
    cells = []
    for name in peers:
        ms = result.peers_ms.get(name)
        cells.append("–" if ms is None else f"{ms:.3f} ({result.speedup[name]:.2f}×)")
    return f"{result.name:<{WIDTH}} {own:>10} {result.kernel:<7}" + "".join(f"{cell:>{COLUMN}}" for cell in cells)


def reasons(results: Sequence[Result]) -> list[str]:
    """Why somebody has no time, once a reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for result in results:
        for name, error in result.errors.items():
            found.setdefault((name, error), []).append(result.name)
    return [
        f"{name}: {error} ({cases[0]}{f' and {len(cases) - 1} more' if len(cases) > 1 else ''})"
        for (name, error), cases in found.items()
    ]


def as_json(
    suite: str, quick: bool, device: torch.device, dtype: torch.dtype, results: Sequence[Result]
) -> dict[str, Any]:
    """Everything."""
    return {
        "suite": suite,
        "quick": quick,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "dtype": str(dtype).removeprefix("torch."),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {name: _version(name) for name in ("torch", "triton", "torch-flexattn")},
        "cases": [result.as_dict() for result in results],
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
