"""The deterministic backward kernels go through Triton's compiler, fit, and add no floats but where places differ."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from torch_flexattn.kernels.triton.tiles import SMALLEST


def test_deterministic_kernels_compile(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TORCH_FLEXATTN_CACHE": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    script = Path(__file__).with_name("compile_backward.py")
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert run.stdout.endswith("compiled\n"), run.stderr[-3000:]
    (of_keys, *added), (of_queries, *none) = (line.split()[2:] for line in run.stdout.splitlines()[:-1])
    assert added == ["f32", "u64"]
    assert none == []
    assert max(int(of_keys), int(of_queries)) <= SMALLEST
