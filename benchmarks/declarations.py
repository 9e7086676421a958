"""The cases that a package declares, found from a bare checkout."""

import importlib
import sys
from types import ModuleType

from benchmarks import provenance

__all__ = ["declarations"]


def declarations(package: str) -> ModuleType:
    """The module ``benchmarks.<import name>``, with every package of the checkout importable.

    Raises:
        ValueError: there is none, or it declares no cases.
    """
    sys.path[:0] = [path for path in map(str, sorted(provenance.ROOT.glob("packages/*/src"))) if path not in sys.path]
    name = package.replace("-", "_")
    try:
        module = importlib.import_module(f"benchmarks.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"benchmarks.{name}":
            raise
        raise ValueError(f"no benchmarks for {package!r}: there is no benchmarks/{name}.py") from error
    if not hasattr(module, "cases"):
        raise ValueError(f"benchmarks/{name}.py declares no cases()")
    return module
