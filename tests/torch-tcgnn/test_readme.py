"""The README's Python blocks run as they stand, and print what it says they print."""

import contextlib
import io
import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "packages" / "torch-tcgnn" / "README.md"
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<printed>.*?)^```)?", re.DOTALL | re.MULTILINE)
BLOCKS = [(found["code"], found["printed"] or "") for found in BLOCK.finditer(README.read_text(encoding="utf-8"))]


def test_the_readme_shows_three_ways_of_use():
    code = "".join(code for code, _ in BLOCKS)
    assert len(BLOCKS) == 3
    for name in ("tcg.accelerate(", "tcg.spmm(", "tcg.nn."):
        assert name in code


@pytest.mark.parametrize("code, printed", BLOCKS, ids=[f"block{number}" for number in range(1, len(BLOCKS) + 1)])
def test_block_prints_what_the_readme_says(code, printed):
    if "torch_geometric" in code:
        pytest.importorskip("torch_geometric")
    if "digits" in code:
        pytest.importorskip("sklearn")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, str(README), "exec"), {"__name__": "readme"})
    assert out.getvalue() == printed


def test_every_command_of_the_readme_exists():
    from torch_tcgnn.cli import main

    commands = re.findall(r"^python -m torch_tcgnn (\w+)", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(commands) == ["bench", "inspect", "tiles", "tune"]
    for command in commands:
        assert main([command, "--help"]) == 0
