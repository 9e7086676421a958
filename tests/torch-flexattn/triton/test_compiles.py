"""Printed programs go through Triton's compiler, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_printed_programs_compile(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TORCH_FLEXATTN_CACHE": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    script = Path(__file__).with_name("compile_printed.py")
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert run.stdout.endswith("compiled\n"), run.stderr[-3000:]
