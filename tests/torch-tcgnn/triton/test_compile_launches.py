"""What launches compile, compiled without a GPU: no tile, type or kind of weights makes Triton's compiler fail.

Lanes' masks once shared by loads of indices and of tiles broke the layout pass of Triton 3.6 and 3.7 at narrow tiles.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch_tcgnn

SCRIPT = Path(__file__).with_name("compile_launches.py")


def compile_launches(arch: int, which: str, cache: Path) -> dict[str, str]:
    """Error of each case, ``""`` where it compiles."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(cache)}
    source = str(Path(torch_tcgnn.__file__).parents[1])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [source, env.get("PYTHONPATH")]))
    command = [sys.executable, str(SCRIPT), str(arch), which]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def failures(found: dict[str, str]) -> dict[str, str]:
    return {case: error for case, error in found.items() if error}


def test_narrow_tiles_compile(tmp_path):
    found = compile_launches(90, "few", tmp_path)
    assert len(found) == 4
    assert failures(found) == {}


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("which, at_least", [("grid", 150), ("attention", 50)])
def test_every_kind_of_launch_compiles(tmp_path, arch, which, at_least):
    found = compile_launches(arch, which, tmp_path)
    assert len(found) >= at_least
    assert failures(found) == {}
