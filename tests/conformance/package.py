"""Find the packages of a house and say where their parts lie; every rule of this suite gets one `Package`.

A house is a folder with `pyproject.toml` (the tools' settings), `packages/torch-*/` and `tests/torch-*/`. The real one
is this checkout; `fixtures/house` is a second one with a single clean package, on which the rules themselves are
tested.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Package:
    """One package folder of a house, for example `packages/torch-tcgnn`."""

    root: Path
    folder: Path

    @property
    def name(self) -> str:
        """Distribution name, which is also the folder's name: `torch-tcgnn`."""
        return self.folder.name

    @property
    def import_name(self) -> str:
        """Import name and namespace of the ops: `torch_tcgnn`."""
        return self.name.replace("-", "_")

    @property
    def src(self) -> Path:
        """The folder to put on the import path."""
        return self.folder / "src"

    @property
    def code(self) -> Path:
        """The folder that holds `__init__.py`."""
        return self.src / self.import_name

    @property
    def cases_path(self) -> Path:
        """The package's own samples; see `tests/conformance/cases.py`."""
        return self.root / "tests" / self.name / "conformance_cases.py"

    def modules(self) -> list[Path]:
        """Every Python file of the package, sorted."""
        return sorted(self.code.rglob("*.py"))

    def room(self, path: Path) -> str:
        """Top-level room that a file of the package belongs to: `ops` for `ops.py` and for `ops/spmm.py`."""
        first = path.relative_to(self.code).parts[0]
        return first.removesuffix(".py")

    def show(self, path: Path) -> str:
        """A path as a violation names it."""
        return path.relative_to(self.root).as_posix()


def find_packages(root: Path = ROOT) -> list[Package]:
    """Every `packages/torch-*` folder that holds source, sorted by name."""
    folders = sorted((root / "packages").glob("torch-*"))
    return [Package(root, folder) for folder in folders if (folder / "src").is_dir()]


@functools.cache
def package_settings(package: Package) -> dict:
    """The package's own `pyproject.toml`; empty when there is none."""
    return _toml(package.folder / "pyproject.toml")


@functools.cache
def house_settings(package: Package) -> dict:
    """The `pyproject.toml` at the root of the package's house; empty when there is none."""
    return _toml(package.root / "pyproject.toml")


def _toml(path: Path) -> dict:
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


@functools.cache
def tree(path: Path) -> ast.Module:
    """Syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def load(package: Package, module: str = "") -> ModuleType:
    """Import the package (or one of its modules) from its source folder, never from somewhere else."""
    if str(package.src) not in sys.path:
        sys.path.insert(0, str(package.src))
    loaded = importlib.import_module(f"{package.import_name}.{module}" if module else package.import_name)
    where = Path(loaded.__file__ or "").resolve()
    if package.code.resolve() not in where.parents:
        raise ImportError(f"{loaded.__name__} was imported from {where}, expected it under {package.code}")
    return loaded


def has_room(package: Package, room: str) -> bool:
    """Whether the package has the file or the folder `room`."""
    return (package.code / f"{room}.py").is_file() or (package.code / room / "__init__.py").is_file()


def samples(package: Package, kind: str) -> Any:
    """What the function `kind` of the package's `conformance_cases.py` returns; made anew at every call."""
    cases = _load_cases(package)
    if not hasattr(cases, kind):
        raise AttributeError(
            f"{package.show(package.cases_path)} has no function {kind}(); see tests/conformance/cases.py"
        )
    return getattr(cases, kind)()


def public_rooms(package: Package) -> list[str]:
    """Rooms that say in an `__all__` what they offer, without those below the surface and those that need extras."""
    inside = {"__init__", "ops", "kernels", "cli", "demo", "lightning"}
    rooms = sorted({package.room(path) for path in package.modules()} - inside)
    files = {room: package.code / f"{room}.py" for room in rooms}
    files = {room: path if path.is_file() else package.code / room / "__init__.py" for room, path in files.items()}
    return [room for room, path in files.items() if path.is_file() and _has_all(path)]


def _has_all(path: Path) -> bool:
    assigned = [target for node in tree(path).body if isinstance(node, ast.Assign) for target in node.targets]
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in assigned)


@functools.cache
def _load_cases(package: Package) -> ModuleType:
    """Import the package's `conformance_cases.py` by path."""
    load(package)
    name = f"conformance_cases_{package.import_name}"
    beside = [str(package.cases_path.parent)]  # makes `from .other_file import …` work
    spec = importlib.util.spec_from_file_location(name, package.cases_path, submodule_search_locations=beside)
    if spec is None or spec.loader is None or not package.cases_path.is_file():
        raise FileNotFoundError(
            f"{package.name} has no {package.show(package.cases_path)}; see tests/conformance/cases.py"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def public_names(module: ModuleType) -> list[str]:
    """The names in a module's `__all__`; without one, the public names that the module itself defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return [name for name in listed if name != "__version__"]
    own = module.__name__
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == own
    ]


def public_objects(package: Package, *rooms: str) -> dict[str, object]:
    """Everything exported by the package, by the modules it exports and by the named rooms, each object once.

    The keys are names as a user writes them behind the package's name: `spmm`, `nn.GCNConv`.
    """
    top = load(package)
    exported = [name for name in public_names(top) if inspect.ismodule(getattr(top, name, None))]
    found: dict[str, object] = {}
    for room in ("", *dict.fromkeys([*rooms, *exported])):
        if room and not has_room(package, room):
            continue
        module = load(package, room)
        for name in public_names(module):
            value = getattr(module, name, None)
            if not inspect.ismodule(value) and not any(value is seen for seen in found.values()):
                found[f"{room}.{name}" if room else name] = value
    return found
