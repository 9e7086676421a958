"""Hopper's kernels go through the compiler on any machine, and use what the machine has: see compile_hopper.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MOST_BYTES = 227 * 1024
"""Of shared memory that a program can have there."""


def test_hopper_kernels_compile_fit_and_use_the_machine(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TORCH_FLEXATTN_CACHE": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    script = Path(__file__).with_name("compile_hopper.py")
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert run.stdout.endswith("compiled\n"), run.stderr[-3000:]
    found = [line.split() for line in run.stdout.splitlines()[:-1]]
    assert len(found) == 11
    for name, shared, products, fetches, additions, registers, of_8_bits in found:
        assert int(shared) <= MOST_BYTES, name
        assert int(products) > 0, f"{name}: no products on tensor cores by groups of warps"
        assert int(fetches) > 0, f"{name}: no tiles by the copy engine"
        assert (int(additions) > 0) == name.startswith("backward"), f"{name}: additions to dq by the copy engine"
        assert (int(of_8_bits) > 0) == (name == "forward-eight"), f"{name}: products of 8 bits"
        assert int(registers) > 0, f"{name}: no registers given to the warps that multiply"
