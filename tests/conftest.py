"""What every test has: one CPU thread, Triton in its interpreter where there is no GPU, real data where it lies.

This file is imported before any test module, so TRITON_INTERPRET is set before anything imports triton.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
CUDA = torch.cuda.is_available()

if not CUDA:
    os.environ.setdefault("TRITON_INTERPRET", "1")
    torch.set_num_threads(1)

try:
    import hypothesis
except ImportError:  # a bare GPU machine: the property tests there skip themselves
    pass
else:
    in_ci = bool(os.environ.get("CI"))
    hypothesis.settings.register_profile("house", deadline=None, print_blob=True, derandomize=in_ci)
    hypothesis.settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--package",
        action="append",
        default=[],
        metavar="NAME",
        help="of the tests outside a package's own folders, keep only those that name this package (repeatable)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not CUDA:
        no_gpu = pytest.mark.skip(reason="needs a CUDA GPU")
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(no_gpu)
    if wanted := config.getoption("--package"):
        names = {spelling for name in wanted for spelling in (name, name.replace("-", "_"))}
        unwanted = [item for item in items if not any(name in item.nodeid for name in names)]
        if unwanted:
            config.hook.pytest_deselected(items=unwanted)
            items[:] = [item for item in items if item not in set(unwanted)]


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data sets: $TORCH_EXT_DATA, or shared/data beside the checkout (or inside it)."""
    named = os.environ.get("TORCH_EXT_DATA")
    places = [Path(named)] if named else [ROOT.parent / "shared" / "data", ROOT / "shared" / "data"]
    for place in places:
        if place.is_dir():
            return place
    pytest.skip("no real data: set TORCH_EXT_DATA to a folder of data sets (looked for ../shared/data)")
