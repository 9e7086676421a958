"""Rules on rooms and floors: which files a package may hold, and which of them may import which.

The floors are read from the import-linter contracts in the house's `pyproject.toml`: they are written down once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.conformance.package import Package, house_settings, tree

VAGUE = {
    "utils",
    "util",
    "helpers",
    "helper",
    "common",
    "misc",
    "manager",
    "managers",
    "handler",
    "handlers",
    "process",
    "core",
    "base",
}
THIRD_PARTY = {"torch_geometric", "torch_scatter", "torch_sparse"}
MAX_LINES = 400


def floors(package: Package) -> list[list[str]]:
    """Rooms from the top floor down, each floor a list; empty when no layers contract covers the package."""
    for contract in house_settings(package).get("tool", {}).get("importlinter", {}).get("contracts", []):
        if contract.get("type") == "layers" and package.import_name in contract.get("containers", []):
            return [
                [part.strip().strip("()").strip() for part in layer.replace("|", ":").split(":")]
                for layer in contract["layers"]
            ]
    return []


def imports(package: Package, path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything a file imports, also inside functions; `from a import b` gives `a.b`."""
    here = [package.import_name, *path.relative_to(package.code).with_suffix("").parts]
    if here[-1] == "__init__":
        here.pop()
        inside = here
    else:
        inside = here[:-1]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = inside[: len(inside) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def check_rooms(package: Package) -> list[str]:
    """Every file at the top of the package is a room of the floor plan, and no file has a vague name."""
    known = {room for floor in floors(package) for room in floor}
    problems = (
        []
        if known
        else [f"no layers contract in the root pyproject.toml has {package.import_name} among its containers"]
    )
    for path in package.modules():
        room = package.room(path)
        vague = VAGUE & {part.removesuffix(".py") for part in path.relative_to(package.code).parts}
        if vague:
            problems.append(f"{package.show(path)}: {', '.join(sorted(vague))} says nothing; name it after what it is")
        elif known and room not in known | {"__init__", "__main__"}:
            problems.append(f"{package.show(path)}: {room} is not a room of the floor plan in the root pyproject.toml")
    return problems


def check_floors(package: Package) -> list[str]:
    """No file imports from a floor above its own, nor from the package's `__init__`."""
    level = {room: depth for depth, floor in enumerate(floors(package)) for room in floor}
    level.setdefault("__main__", 0)
    problems = []
    for path in package.modules():
        room = package.room(path)
        for line, name in imports(package, path):
            parts = name.split(".")
            if parts[0] != package.import_name or room not in level:
                continue
            target = parts[1] if len(parts) > 1 else ""
            if target in level and level[target] < level[room]:
                problems.append(f"{package.show(path)}:{line}: {room} imports {target}, which is a floor above")
            elif target not in level and level[room] > 0 and not _is_module(package, target):
                problems.append(
                    f"{package.show(path)}:{line}: {room} imports {package.import_name}, not the room that defines it"
                )
    return sorted(set(problems))


def _is_module(package: Package, room: str) -> bool:
    return bool(room) and ((package.code / room).is_dir() or (package.code / f"{room}.py").is_file())


def check_imports_no_other_package(package: Package) -> list[str]:
    """No package imports another of the house (`integrations/` and `examples/` may)."""
    problems = []
    for path in package.modules():
        for line, name in imports(package, path):
            root = name.split(".")[0]
            if root.startswith("torch_") and root != package.import_name and root not in THIRD_PARTY:
                problems.append(f"{package.show(path)}:{line}: imports {root}")
    return sorted(set(problems))


def check_only_lightning_imports_lightning(package: Package) -> list[str]:
    """`lightning` is imported in the room `lightning` and nowhere else."""
    return [
        f"{package.show(path)}:{line}: imports {name.split('.')[0]}; only lightning.py may"
        for path in package.modules()
        if package.room(path) != "lightning"
        for line, name in imports(package, path)
        if name.split(".")[0] in ("lightning", "pytorch_lightning")
    ]


def check_kernels_know_no_modules(package: Package) -> list[str]:
    """Files under `kernels/` import neither `torch.nn` nor the package's `nn`; `torch.nn.functional` is no module."""
    upper = ("torch.nn", f"{package.import_name}.nn")
    return [
        f"{package.show(path)}:{line}: a kernel imports {name}"
        for path in package.modules()
        if package.room(path) == "kernels"
        for line, name in imports(package, path)
        if (name in upper or name.startswith(tuple(f"{u}." for u in upper)))
        and not name.startswith("torch.nn.functional")
    ]


def check_module_length(package: Package) -> list[str]:
    """No file has more than 400 lines: a room that outgrows them becomes a folder."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in package.modules()}
    return [
        f"{package.show(path)} has {count} lines, at most {MAX_LINES}"
        for path, count in lengths.items()
        if count > MAX_LINES
    ]


RULES = [
    check_rooms,
    check_floors,
    check_imports_no_other_package,
    check_only_lightning_imports_lightning,
    check_kernels_know_no_modules,
    check_module_length,
]
