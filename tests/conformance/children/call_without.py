"""Child process: make a package's sample calls for its extras, each in a fork that cannot import that extra's modules.

`python -P call_without.py torch_x conformance_cases.py '{"plot": ["matplotlib"]}'` prints one JSON line an extra:
`["plot", "ImportError", "message"]`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from typing import Any


class Hiding:
    """A finder that does not find some modules, as if they were not installed."""

    def __init__(self, finder: Any, names: list[str]) -> None:
        self.finder, self.names = finder, names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Nothing for a hidden module, else what the finder finds."""
        return None if hidden(name, self.names) else self.finder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)


def hidden(module: str, names: list[str]) -> bool:
    """Whether a module is one of the names or lies below one."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


def attempt(extra: str, names: list[str], cases_path: str) -> tuple[str, str]:
    """Kind and message of the error that the extra's sample call gives without the modules, or what it returns."""
    for module in [name for name in sys.modules if hidden(name, names)]:
        del sys.modules[module]
    sys.meta_path[:] = [Hiding(finder, names) for finder in sys.meta_path]
    beside = [os.path.dirname(cases_path)]
    spec = importlib.util.spec_from_file_location("conformance_cases", cases_path, submodule_search_locations=beside)
    cases = importlib.util.module_from_spec(spec)
    sys.modules["conformance_cases"] = cases
    try:
        spec.loader.exec_module(cases)
        told = cases.extras()[extra]()
    except ImportError as error:
        return "ImportError", str(error)
    except BaseException as error:
        return type(error).__name__, str(error)[:500]
    return ("message", told) if isinstance(told, str) else ("nothing", "")


if __name__ == "__main__":
    package, path, blocked = sys.argv[1:]
    importlib.import_module(package)
    for extra, names in json.loads(blocked).items():
        child = os.fork()
        if child == 0:
            print("\n" + json.dumps([extra, *attempt(extra, names, path)]), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
