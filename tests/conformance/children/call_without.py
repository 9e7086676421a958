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


class Missing:
    """A finder that knows some modules and says that they are not there."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def hides(self, module: str) -> bool:
        """Whether the module is one of the names or lies below one."""
        return any(module == name or module.startswith(f"{name}.") for name in self.names)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Refuse the hidden modules, leave all others to the next finder."""
        if self.hides(name):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def attempt(extra: str, names: list[str], cases_path: str) -> tuple[str, str]:
    """Kind and message of the error that the extra's sample call gives without the modules."""
    missing = Missing(names)
    for module in [name for name in sys.modules if missing.hides(name)]:
        del sys.modules[module]
    sys.meta_path.insert(0, missing)
    spec = importlib.util.spec_from_file_location("conformance_cases", cases_path)
    cases = importlib.util.module_from_spec(spec)
    sys.modules["conformance_cases"] = cases
    try:
        spec.loader.exec_module(cases)
        cases.extras()[extra]()
    except ImportError as error:
        return "ImportError", str(error)
    except BaseException as error:
        return type(error).__name__, str(error)[:500]
    return "nothing", ""


if __name__ == "__main__":
    package, path, blocked = sys.argv[1:]
    importlib.import_module(package)
    for extra, names in json.loads(blocked).items():
        child = os.fork()
        if child == 0:
            print("\n" + json.dumps([extra, *attempt(extra, names, path)]), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
