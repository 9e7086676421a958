"""Kernels of selected blocks go through Triton's compiler, too: see compile_selected.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MOST_BYTES = 99 * 1024
"""Of shared memory that a program of the smallest GPUs served can have."""


def test_kernels_of_selected_blocks_fit(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TORCH_FLEXATTN_CACHE": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    script = Path(__file__).with_name("compile_selected.py")
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert run.stdout.endswith("compiled\n"), run.stderr[-3000:]
    found = [line.split() for line in run.stdout.splitlines()[:-1]]
    assert len(found) == 7
    for name, _, shared, spilled, _, products in found:
        assert int(spilled) == 0, name
        assert int(shared) <= MOST_BYTES, name
        assert int(products) > 0 or name == "add", name
