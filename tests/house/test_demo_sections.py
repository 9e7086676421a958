"""Every package's own demo section runs on data that installs with it, and keeps the contract of `examples/demo.py`."""

import importlib
from pathlib import Path

import pytest

pytest.importorskip("rich", reason="the demo draws with rich")

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(p.parent.name for p in ROOT.glob("packages/torch-*/pyproject.toml"))


@pytest.mark.parametrize("package", PACKAGES)
def test_the_section_of_a_package_runs_without_a_data_folder(package, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    demo = importlib.import_module("demo")
    (found,) = [found for found in demo.find_sections() if found.name == package]
    seen = []
    outcome = demo.run_section(found, lambda fraction, message: seen.append(fraction), None, 0)
    assert outcome.error is None, outcome.error
    assert outcome.rows, "a section shows at least one row"
    assert outcome.figures, "a section shows at least one figure"
    assert seen == sorted(seen), "progress only moves forward"
    assert seen
    assert all(0.0 <= fraction <= 1.0 for fraction in seen)
