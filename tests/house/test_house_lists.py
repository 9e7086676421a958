"""What names every package names every package: a new one cannot be forgotten in a list that no glob can fill."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(p.parent.name for p in ROOT.glob("packages/torch-*/pyproject.toml"))
HOUSE = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
CONTRACTS = HOUSE["importlinter"]["contracts"]


def project(package):
    return tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]


def contract_members(kind, key):
    return [name for contract in CONTRACTS if contract["type"] == kind for name in contract[key]]


def lists_of_import_names():
    return {
        "[tool.coverage.run] source_pkgs": HOUSE["coverage"]["run"]["source_pkgs"],
        "[tool.importlinter] root_packages": HOUSE["importlinter"]["root_packages"],
        "import-linter's layers contracts, containers": contract_members("layers", "containers"),
        "import-linter's independence contract, modules": contract_members("independence", "modules"),
        "import-linter's lightning contract, source_modules": contract_members("forbidden", "source_modules"),
    }


def test_there_are_packages():
    assert "torch-tcgnn" in PACKAGES


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("place", lists_of_import_names())
def test_the_root_pyproject_names_every_package(package, place):
    name = package.replace("-", "_")
    assert name in lists_of_import_names()[place], f'pyproject.toml, {place}: add the line "{name}",'


@pytest.mark.parametrize("package", PACKAGES)
def test_pytest_finds_every_package_in_a_bare_checkout(package):
    line = f"packages/{package}/src"
    assert line in HOUSE["pytest"]["ini_options"]["pythonpath"], f'pyproject.toml, pythonpath: add the line "{line}",'


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_declares_what_the_house_relies_on(package):
    declared = project(package)
    assert declared["name"] == package
    assert declared["requires-python"] == ">=3.11"
    assert "all" in declared["optional-dependencies"]
    assert any(re.match(r"torch\s*>=\s*2\.11", requirement) for requirement in declared["dependencies"])
    assert package in declared["entry-points"]["torch_ext.demo"]
    assert (ROOT / "packages" / package / "src" / package.replace("-", "_") / "py.typed").exists()
    assert (ROOT / "tests" / package / "smoke.py").exists(), f"tests/{package}/smoke.py is missing (nox -s isolated)"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_depends_on_another(package):
    declared = project(package)
    extras = [r for group in declared["optional-dependencies"].values() for r in group]
    named = {re.split(r"[\s\[<>=!~;]", r, maxsplit=1)[0] for r in [*declared["dependencies"], *extras]}
    assert not (named - {package}) & set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_readme_lists_the_package_with_its_folder(package):
    assert f"(packages/{package})" in (ROOT / "README.md").read_text(), (
        f"README.md: no table line links packages/{package}"
    )


def test_every_package_folder_that_the_readme_links_exists():
    linked = re.findall(r"\(packages/([\w-]+)\)", (ROOT / "README.md").read_text())
    assert sorted(set(linked)) == PACKAGES


def test_ci_runs_the_test_command_of_the_readme():
    (command,) = set(re.findall(r"^(nox -s tests)\b", (ROOT / "README.md").read_text(), flags=re.MULTILINE))
    ci = (ROOT / ".ci" / "run").read_text()
    assert re.search(rf"^{command} 2>&1", ci, flags=re.MULTILINE)
    assert "python -m pip install --quiet --disable-pip-version-check nox" in ci
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
