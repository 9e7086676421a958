"""The README's Python blocks run as they stand, and print what it says they print; its tables name what exists."""

import contextlib
import io
import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "packages" / "torch-flexattn" / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<printed>.*?)^```)?", re.DOTALL | re.MULTILINE)
BLOCKS = [(found["code"], found["printed"] or "") for found in BLOCK.finditer(TEXT)]


def test_the_readme_shows_masks_biases_pictures_and_pages():
    assert len(BLOCKS) == 4
    code = "".join(code for code, _ in BLOCKS)
    for name in ("masks.document(", "score_mod=", "create_block_mask(", "PagedKVCache("):
        assert name in code


@pytest.mark.parametrize("code, printed", BLOCKS, ids=[f"block{number}" for number in range(1, len(BLOCKS) + 1)])
def test_block_prints_what_the_readme_says(code, printed):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, str(README), "exec"), {"__name__": "readme"})
    assert out.getvalue() == printed


@pytest.mark.parametrize("room", ["masks", "scores"])
def test_the_tables_name_every_ready_made_function(room):
    import torch_flexattn

    (table,) = re.findall(rf"^\| {room} \| \|\n((?:\|.*\n)+)", TEXT, flags=re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(getattr(torch_flexattn, room).__all__)


def test_every_command_of_the_readme_exists(capsys):
    from torch_flexattn.cli import main

    commands = re.findall(r"^python -m torch_flexattn (\w+)", TEXT, flags=re.MULTILINE)
    assert sorted(set(commands)) == ["bench", "doctor", "explain", "tune", "viz"]
    for command in commands:
        assert main([command, "--help"]) == 0
    capsys.readouterr()
