"""Decode kernels go through Triton's compiler, too, and are what they should be: see compile_decode.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MOST_BYTES = 99 * 1024
"""Of shared memory that a program of the smallest GPUs served can have."""


def test_decode_kernels_fit_and_fetch_ahead(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TORCH_FLEXATTN_CACHE": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    script = Path(__file__).with_name("compile_decode.py")
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert run.stdout.endswith("compiled\n"), run.stderr[-3000:]
    found = [line.split() for line in run.stdout.splitlines()[:-1]]
    for name, _, shared, spilled, *_ in found:
        assert int(spilled) == 0, name
        assert int(shared) <= MOST_BYTES, name
    ahead = [int(shared) for name, _, shared, *_ in found if name == "decode"]
    assert len(ahead) == 12
    two_tiles = 2 * 2 * 64 * 128  # of keys and of values, 64 by 128 features
    assert all(shared >= two_tiles * 2 for shared in ahead[:4] + ahead[6:10])  # of 2 bytes
    assert all(shared >= two_tiles for shared in ahead[5::6])  # of 8 bits
    assert sum(name == "forward" for name, *_ in found) == 2
    of_runs = [int(carried) for name, *_, carried in found if name == "decode"][3::6]
    assert of_runs == [1, 1]  # the tiles of earlier runs, where only bounds of loops read them
