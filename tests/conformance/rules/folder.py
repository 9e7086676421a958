"""Rules on the package's folder: README, metadata, typing marker, no machine named, its lines in the root settings."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.conformance.package import Package, house_settings, load, package_settings, public_names

TEXT = {".py", ".md", ".rst", ".toml", ".txt", ".cu", ".cuh", ".h", ".cfg", ".ini", ".json", ".yaml", ".yml", ".sh"}
MACHINE_PATH = re.compile(r"(?<![\w.:/])(/(work|tmp|root|var/tmp|home/\w+|Users/\w+)/|[A-Z]:\\\\?Users)")
REGISTRY = re.compile(
    r"(--(extra-)?index-url|\bpypi\.org|\bpythonhosted\.org|download\.pytorch\.org|registry\.npmjs|deb\.debian\.org|proxy\.golang)"
)
USE_LINES = (3, 15)


def text_files(package: Package) -> list[Path]:
    """Text files of the package and of its tests, sorted."""
    folders = [package.folder, package.cases_path.parent]
    skip = {"__pycache__", "dist", "build", ".pytest_cache"}
    return sorted(
        p
        for f in folders
        if f.is_dir()
        for p in f.rglob("*")
        if p.suffix in TEXT and p.is_file() and not skip & set(p.parts)
    )


def check_names_no_machine(package: Package) -> list[str]:
    """No text file holds a path of one machine or the address of a package registry."""
    problems = []
    for path in text_files(package):
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            found = MACHINE_PATH.search(line) or REGISTRY.search(line)
            if found:
                problems.append(f"{package.show(path)}:{number}: names {found.group()!r}")
    return problems


def check_typing_marker(package: Package) -> list[str]:
    """The package holds `py.typed`, so that its annotations reach the user."""
    return [] if (package.code / "py.typed").is_file() else [f"{package.show(package.code)}/py.typed is missing"]


def check_metadata(package: Package) -> list[str]:
    """pyproject: name, Python and torch bounds, hatchling, wheel contents, licence, README."""
    settings = package_settings(package)
    project = settings.get("project", {})
    wheel = settings.get("tool", {}).get("hatch", {}).get("build", {}).get("targets", {}).get("wheel", {})
    torches = [d for d in project.get("dependencies", []) if re.match(r"torch(?![\w-])", d)]
    wanted = {
        f'project.name = "{package.name}"': project.get("name") == package.name,
        'project.requires-python = ">=3.11"': project.get("requires-python") == ">=3.11",
        '"torch>=2.11" among project.dependencies': [d.replace(" ", "") for d in torches] == ["torch>=2.11"],
        'build-system.build-backend = "hatchling.build"': settings.get("build-system", {}).get("build-backend")
        == "hatchling.build",
        f'tool.hatch.build.targets.wheel.packages = ["src/{package.import_name}"]': wheel.get("packages")
        == [f"src/{package.import_name}"],
        "project.description": bool(project.get("description")),
        "project.license": bool(project.get("license")),
        'project.readme = "README.md"': project.get("readme") == "README.md",
    }
    return [f"{package.name}/pyproject.toml lacks {what}" for what, there in wanted.items() if not there]


def check_dependencies_of_extras(package: Package) -> list[str]:
    """Hard dependencies hold none of the packages that belong into extras."""
    optional = {
        "lightning",
        "torchmetrics",
        "triton",
        "torch-geometric",
        "torch-scatter",
        "torch-sparse",
        "matplotlib",
        "cuda-core",
        "typer",
    }
    names = [
        re.match(r"[\w.-]+", d).group().lower()
        for d in package_settings(package).get("project", {}).get("dependencies", [])
    ]
    return [f"{package.name} depends on {name}, which belongs into an extra" for name in names if name in optional]


def check_readme(package: Package) -> list[str]:
    """README: the name, the job in a paragraph, some ten lines of use, a table of what is public, limits."""
    path = package.folder / "README.md"
    if not path.is_file():
        return [f"{package.name} has no README.md"]
    text = path.read_text(encoding="utf-8")
    problems = []
    if not text.startswith(f"# {package.name}"):
        problems.append(f"README.md does not begin with '# {package.name}'")
    opening = re.split(r"^(?:#+ |```)", text.partition("\n")[2], maxsplit=1, flags=re.M)[0]
    if len(opening.split()) < 12:
        problems.append("README.md does not open with the job in a paragraph")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)
    if not any(_is_use(package, block) for block in blocks):
        problems.append(
            f"README.md has no Python block of {USE_LINES[0]} to {USE_LINES[1]} lines that uses {package.import_name}"
        )
    problems += [
        f"README.md: a Python block does not parse: {block.splitlines()[0]!r}" for block in blocks if not _parses(block)
    ]
    if not re.search(r"^#+ .*limit", text, flags=re.M | re.I):
        problems.append("README.md has no heading about limits")
    return problems


def _is_use(package: Package, block: str) -> bool:
    lines = [line for line in block.splitlines() if line.strip() and not line.strip().startswith("#")]
    return package.import_name in block and USE_LINES[0] <= len(lines) <= USE_LINES[1]


def _parses(block: str) -> bool:
    try:
        ast.parse(block)
    except SyntaxError:
        return False
    return True


def check_readme_table(package: Package) -> list[str]:
    """A table of the README names everything in `__all__`."""
    path = package.folder / "README.md"
    rows = (
        [line for line in path.read_text(encoding="utf-8").splitlines() if line.lstrip().startswith("|")]
        if path.is_file()
        else []
    )
    listed = set(re.findall(r"\w+", " ".join(rows)))
    missing = [name for name in public_names(load(package)) if name not in listed]
    return [f"the README's tables do not name {', '.join(missing)}"] if missing else []


def check_house_lists_package(package: Package) -> list[str]:
    """The root pyproject names the package for pytest and in every import-linter contract."""
    tools = house_settings(package).get("tool", {})
    linter, name = tools.get("importlinter", {}), package.import_name
    contracts = linter.get("contracts", [])

    def among(kind: str, key: str) -> bool:
        return any(name in contract.get(key, []) for contract in contracts if contract.get("type") == kind)

    wanted = {
        "tool.pytest.ini_options.pythonpath": f"packages/{package.name}/src"
        in tools.get("pytest", {}).get("ini_options", {}).get("pythonpath", []),
        "tool.importlinter.root_packages": name in linter.get("root_packages", []),
        "the containers of a layers contract": among("layers", "containers"),
        "the modules of the independence contract": among("independence", "modules"),
        "the source_modules of the contract on lightning": among("forbidden", "source_modules"),
    }
    return [
        f"the root pyproject.toml does not list {package.name} in {where}"
        for where, there in wanted.items()
        if not there
    ]


RULES = [
    check_names_no_machine,
    check_typing_marker,
    check_metadata,
    check_dependencies_of_extras,
    check_readme,
    check_readme_table,
    check_house_lists_package,
]
