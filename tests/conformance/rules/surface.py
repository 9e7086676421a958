"""Rules on what a package shows: its version, its `__all__`, its `__init__.py`."""

from __future__ import annotations

import ast
import re

from tests.conformance.package import Package, load, package_settings, tree


def check_version(package: Package) -> list[str]:
    """`__version__` is there and is the version in the package's pyproject."""
    settings = package_settings(package)
    version = getattr(load(package), "__version__", None)
    declared = settings.get("project", {}).get("version")
    if version is None:
        return [f"{package.import_name} has no __version__"]
    if declared is None:
        path = settings.get("tool", {}).get("hatch", {}).get("version", {}).get("path")
        if path is None:
            return [f"{package.name}/pyproject.toml gives neither project.version nor tool.hatch.version.path"]
        found = re.search(
            r"^__version__\s*=\s*[\"']([^\"']+)", (package.folder / path).read_text(encoding="utf-8"), re.M
        )
        declared = found.group(1) if found else None
    return [] if version == declared else [f"__version__ is {version!r}, pyproject says {declared!r}"]


def check_all_names(package: Package) -> list[str]:
    """Every name in `__all__` exists, is public and stands there once; every re-exported name is in it."""
    module = load(package)
    listed = getattr(module, "__all__", None)
    if listed is None:
        return [f"{package.import_name} has no __all__"]
    problems = [f"__all__ names {name!r}, which does not exist" for name in listed if not hasattr(module, name)]
    problems += [
        f"__all__ names the private {name!r}" for name in listed if name.startswith("_") and name != "__version__"
    ]
    problems += [f"__all__ names {name!r} twice" for name in sorted(set(listed)) if list(listed).count(name) > 1]
    missing = [
        name
        for name in _imported(tree(package.code / "__init__.py"))
        if not name.startswith("_") and name not in listed
    ]
    return problems + [f"{name!r} is imported in __init__.py and missing in __all__" for name in missing]


def _imported(module: ast.Module) -> list[str]:
    return [
        alias.asname or alias.name
        for node in module.body
        if isinstance(node, ast.ImportFrom) and node.module not in ("__future__", "typing")
        for alias in node.names
    ]


def check_all_order(package: Package) -> list[str]:
    """`__all__` is sorted; groups set apart by a blank line or a comment are sorted each on its own."""
    problems = []
    for group in _groups(_all_elements(tree(package.code / "__init__.py"))):
        if group not in _orders(group):
            problems.append(f"__all__ is not sorted: {', '.join(group)}; expected {', '.join(_orders(group)[0])}")
    return problems


def _all_elements(module: ast.Module) -> list[ast.Constant]:
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List | ast.Tuple) and _assigns(node, "__all__"):
            return [e for e in node.value.elts if isinstance(e, ast.Constant)]
    return []


def _assigns(node: ast.Assign, *names: str) -> bool:
    return all(isinstance(target, ast.Name) and target.id in names for target in node.targets)


def _groups(elements: list[ast.Constant]) -> list[list[str]]:
    groups: list[list[str]] = []
    last_line = None
    for element in elements:
        if last_line is None or element.lineno > last_line + 1:
            groups.append([])
        groups[-1].append(element.value)
        last_line = element.lineno
    return groups


def _orders(group: list[str]) -> list[list[str]]:
    """The accepted orders: constants, classes, functions (as ruff sorts); plain; ignoring case."""

    def kind(name: str) -> tuple[int, str]:
        return (0 if name.isupper() else 1 if name[:1].isupper() else 2), name

    return [sorted(group, key=kind), sorted(group), sorted(group, key=str.casefold)]


def check_init_only_reexports(package: Package) -> list[str]:
    """`__init__.py` holds a docstring, imports from the package itself, `__all__` and `__version__`, nothing else.

    What is imported when first read is told to type checkers under `if TYPE_CHECKING:`.
    """
    problems = []
    module = tree(package.code / "__init__.py")
    if ast.get_docstring(module) is None:
        problems.append("__init__.py has no docstring")
    for node in _typed_both_ways(module.body):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            continue
        if isinstance(node, ast.ImportFrom) and (
            node.level > 0 or node.module == "__future__" or (node.module or "").split(".")[0] == package.import_name
        ):
            if any(alias.name == "*" for alias in node.names):
                problems.append(f"__init__.py line {node.lineno}: star import")
            continue
        if isinstance(node, ast.Assign) and _assigns(node, "__all__", "__version__") and _literal(node.value):
            continue
        problems.append(
            f"__init__.py line {node.lineno}: `{ast.unparse(node).splitlines()[0]}` is more than a re-export"
        )
    return problems


def _typed_both_ways(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements, with those under `if TYPE_CHECKING:` and its `else:` in its place, and without its import."""
    flat: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            flat += [*node.body, *node.orelse]
        elif ast.unparse(node) != "from typing import TYPE_CHECKING":
            flat.append(node)
    return flat


def _literal(value: ast.expr) -> bool:
    if isinstance(value, ast.List | ast.Tuple):
        return all(_literal(element) for element in value.elts)
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


RULES = [check_version, check_all_names, check_all_order, check_init_only_reexports]
