"""Callbacks and packed data on two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lightning", reason="extra: lightning")
SCRIPT = Path(__file__).with_name("train_distributed.py")


@pytest.mark.slow
def test_two_ranks_train_on_rows_of_their_own(tmp_path):
    source = SCRIPT.parents[2] / "packages" / "torch-flexattn" / "src"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(source)}
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)], env=environment, capture_output=True, text=True, timeout=170,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert first["steps"] == second["steps"] == 1
    everything = [t for n in (9, 4, 14, 3, 6, 12) for t in (i % 11 for i in range(n))]
    assert first["tokens"] == everything[:16]
    assert second["tokens"] == everything[16:32]
    assert first["weights"] == second["weights"]
    assert first["visible"] != second["visible"]
    assert (tmp_path / "mask.svg").stat().st_size > 100
