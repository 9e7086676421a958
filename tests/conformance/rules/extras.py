"""Rule on optional dependencies: where one is missing, its use says which pip command brings it.

A child process imports the package, then forks once an extra; the fork hides that extra's modules and makes the
package's sample call.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.conformance.package import ROOT, Package, package_settings, samples

CHILD = Path(__file__).parents[1] / "children" / "call_without.py"


def extras(package: Package) -> dict[str, list[str]]:
    """The package's extras with the import names they bring, without those that only gather other extras."""
    declared = package_settings(package).get("project", {}).get("optional-dependencies", {})
    found = {}
    for extra, requirements in declared.items():
        names = [re.match(r"[\w.-]+", requirement).group().lower() for requirement in requirements]
        modules = sorted({module for name in names if name != package.name for module in _import_names(name)})
        if modules:
            found[extra] = modules
    return found


@functools.cache
def _top_modules() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for module, distributions in importlib.metadata.packages_distributions().items():
        for distribution in distributions:
            found.setdefault(re.sub(r"[-_.]+", "-", distribution).lower(), []).append(module)
    return found


def _import_names(distribution: str) -> list[str]:
    special = {
        "cuda-core": ["cuda"],
        "cuda-bindings": ["cuda"],
        "scikit-learn": ["sklearn"],
        "lightning": ["lightning"],
    }
    if distribution in special:
        return special[distribution]
    if distribution.startswith("nvidia-"):
        return []
    installed = [m for m in _top_modules().get(re.sub(r"[-_.]+", "-", distribution), []) if not m.startswith("_")]
    return installed or [distribution.replace("-", "_")]


@functools.cache
def _attempts(package: Package) -> dict[str, tuple[str, str]]:
    known = samples(package, "extras")
    blocked = {extra: names for extra, names in extras(package).items() if extra in known}
    if not blocked:
        return {}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(package.src), str(ROOT)])}
    child = subprocess.run(
        [sys.executable, "-P", str(CHILD), package.import_name, str(package.cases_path), json.dumps(blocked)],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if child.returncode:
        raise RuntimeError(f"the child process failed: {child.stderr.strip()[-800:]}")
    lines = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("[")]
    return {extra: (kind, message) for extra, kind, message in lines}


def check_extras_have_cases(package: Package) -> list[str]:
    """Every declared extra has a call that needs it, and every call belongs to a declared extra."""
    declared = extras(package)
    if not declared:
        return []
    known = samples(package, "extras")
    problems = [
        f"extra [{extra}] has no call in extras() of conformance_cases.py" for extra in declared if extra not in known
    ]
    return problems + [
        f"extras() has a call for [{extra}], which pyproject does not declare"
        for extra in known
        if extra not in declared
    ]


def check_missing_extras_are_explained(package: Package) -> list[str]:
    """Without an extra's modules a call names `pip install <package>[<extra>]`, as ImportError or result."""
    if not extras(package):
        return []
    problems = []
    for extra, (kind, message) in _attempts(package).items():
        wanted = f"{package.name}[{extra}]"
        if kind not in ("ImportError", "message"):
            problems.append(f"without [{extra}] its call raises {kind} {message[:150]!r}, expected an ImportError")
        elif "pip install" not in message or wanted not in message:
            problems.append(
                f"without [{extra}] the message is {message[:200]!r}, expected it to name `pip install {wanted}`"
            )
    return problems


RULES = [check_extras_have_cases, check_missing_extras_are_explained]
