"""Rules on `import torch_x`: it costs what `import torch` costs, loads no optional dependency, and changes nothing.

One child process, started with torch already imported, watches the import and reports; all rules read that report.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conformance.package import Package

LIMIT_SECONDS = 0.5
HEAVY = {
    "lightning", "pytorch_lightning", "torchmetrics", "triton", "torch_geometric", "torch_scatter", "torch_sparse",
    "scipy", "sklearn", "matplotlib", "pandas", "transformers", "rdkit",
}  # fmt: skip
CHILD = Path(__file__).parents[1] / "children" / "watch_import.py"


def watch_import(package: Package) -> dict:
    """Import the package in a child process that has torch loaded, and report what happened."""
    environment = os.environ | {"PYTHONPATH": str(package.src), "PYTHONDONTWRITEBYTECODE": "1"}
    child = subprocess.run(
        [sys.executable, "-P", str(CHILD), package.import_name],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if child.returncode:
        raise ImportError(f"import {package.import_name} failed in a fresh process: {child.stderr.strip()[-800:]}")
    return json.loads(child.stdout.splitlines()[-1])


@functools.cache
def _report(package: Package) -> dict:
    return watch_import(package)


def check_import_time(package: Package) -> list[str]:
    """On top of `import torch`, the import takes at most half a second.

    Load on the machine only adds time, so the best of up to three counts.
    """
    seconds = _report(package)["seconds"]
    for _ in range(2):
        if seconds <= LIMIT_SECONDS:
            return []
        seconds = min(seconds, watch_import(package)["seconds"])
    return (
        []
        if seconds <= LIMIT_SECONDS
        else [f"import {package.import_name} takes {seconds:.2f} s on top of torch, allowed {LIMIT_SECONDS} s"]
    )


def check_import_loads_nothing_heavy(package: Package) -> list[str]:
    """No optional dependency is loaded by the import."""
    return [f"import {package.import_name} loads {root}" for root in _report(package)["roots"] if root in HEAVY]


def check_import_is_silent(package: Package) -> list[str]:
    """The import prints nothing, neither to stdout nor to stderr (warnings included)."""
    printed = _report(package)["printed"].strip()
    return [f"import {package.import_name} prints {printed[:200]!r}"] if printed else []


def check_import_has_no_side_effects(package: Package) -> list[str]:
    """The import writes no file, opens no connection, starts no process, initialises no GPU, changes no setting."""
    report = _report(package)
    problems = [f"import {package.import_name} does {event}" for event in report["events"]]
    problems += [f"import {package.import_name} changes the {setting}" for setting in report["changed"]]
    return problems + ([f"import {package.import_name} initialises CUDA"] if report["cuda"] else [])


RULES = [check_import_time, check_import_loads_nothing_heavy, check_import_is_silent, check_import_has_no_side_effects]
