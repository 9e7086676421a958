"""`torch_tcgnn.data` and `torch_tcgnn.lightning` are there when they are read, and cost nothing before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch_tcgnn as tcg


def run(code: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(Path(tcg.__file__).parents[1])}
    child = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return child.stdout.strip()


def test_data_needs_no_import_of_its_own():
    code = "import sys, torch_tcgnn as t; print('torch_tcgnn.data' in sys.modules, t.data.rmat(8, 8), t.data is t.data)"
    assert run(code) == "False GraphData(rmat: 8 nodes, 8 edges) True"


def test_lightning_is_imported_when_it_is_read_and_not_before():
    pytest.importorskip("lightning")
    code = "import sys, torch_tcgnn as t; print('lightning' in sys.modules, t.lightning.FullGraph.__name__)"
    assert run(code) == "False FullGraph"


def test_without_lightning_reading_it_says_what_to_install():
    code = (
        "import sys; sys.modules['lightning'] = None\nimport torch_tcgnn as t\n"
        "try: t.lightning\nexcept ImportError as error: print(error)"
    )
    assert "pip install 'torch-tcgnn[lightning]'" in run(code)


def test_other_names_are_missing_as_ever():
    with pytest.raises(AttributeError, match="module 'torch_tcgnn' has no attribute 'graphs'"):
        tcg.graphs  # noqa: B018
    assert not hasattr(tcg, "demos")
