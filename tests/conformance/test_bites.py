"""The rules themselves: a clean package passes all of them, and each planted defect is found by its rule."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.conformance.fixtures.defects import DEFECTS, Defect
from tests.conformance.package import Package, find_packages
from tests.conformance.rules import RULES, Rule, docstrings, floors, folder, surface

CLEAN_HOUSE = Path(__file__).parent / "fixtures" / "house"
BY_NAME = {rule.__name__.removeprefix("check_"): rule for rule in RULES}
READ_TEXT = [*surface.RULES, *docstrings.RULES, *floors.RULES, *folder.RULES]


def build_house(target: Path, word: str, edits: tuple = ()) -> Package:
    """Copy the clean house with some edits; its package becomes `torch-<word>`, since ops register only once."""
    shutil.copytree(CLEAN_HOUSE, target, ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in edits:
        path = target / name
        if new is None:
            path.unlink()
        elif old is None:
            path.write_text(new, encoding="utf-8")
        else:
            text = path.read_text(encoding="utf-8")
            assert text.count(old) >= 1, f"the clean house has no {old!r} in {name}: the defect would change nothing"
            path.write_text(text.replace(old, new, 1), encoding="utf-8")
    for path in [p for p in target.rglob("*") if p.is_file()]:
        text = path.read_text(encoding="utf-8")
        path.write_text(
            text.replace("torch_clean", f"torch_{word}").replace("torch-clean", f"torch-{word.replace('_', '-')}"),
            encoding="utf-8",
        )
    for path in sorted((p for p in target.rglob("*") if p.is_dir()), key=lambda p: -len(p.parts)):
        path.rename(
            path.with_name(
                path.name.replace("torch_clean", f"torch_{word}").replace(
                    "torch-clean", f"torch-{word.replace('_', '-')}"
                )
            )
        )
    (package,) = find_packages(target)
    return package


@pytest.fixture(scope="module")
def clean_package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return build_house(tmp_path_factory.mktemp("clean") / "house", "spotless")


@pytest.fixture(autouse=True)
def unharmed_process() -> Iterator[None]:
    """Rules that read docstrings import the defective package here; one of the defects changes this setting."""
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__.removeprefix("check_"))
def test_clean_package_passes(clean_package: Package, rule: Rule) -> None:
    assert rule(clean_package) == []


@pytest.mark.parametrize(
    "number",
    range(len(DEFECTS)),
    ids=lambda n: f"{DEFECTS[n].rule}-{re.sub('[^a-z]+', '_', DEFECTS[n].says.lower()).strip('_')}",
)
@pytest.mark.filterwarnings("ignore:careful")
def test_rule_finds_its_defect_and_nothing_else(tmp_path: Path, number: int) -> None:
    defect: Defect = DEFECTS[number]
    package = build_house(tmp_path / "house", f"bad{number}", defect.edits)
    problems = BY_NAME[defect.rule](package)
    assert problems, f"{defect.rule} does not find: {defect.says}"
    assert all(defect.says in problem for problem in problems), problems
    others = {
        rule.__name__.removeprefix("check_"): rule(package) for rule in READ_TEXT if rule is not BY_NAME[defect.rule]
    }
    assert {name for name, found in others.items() if found} == set(defect.also), others


def test_every_rule_has_a_defect() -> None:
    assert {defect.rule for defect in DEFECTS} == BY_NAME.keys()


def test_no_package_is_found_in_an_empty_folder(tmp_path: Path) -> None:
    assert find_packages(tmp_path) == []
