"""An accelerated PyG model under `DistributedDataParallel`, two processes on gloo: as one process on both graphs."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("torch_geometric")
SCRIPT = Path(__file__).with_name("train_distributed.py")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, dict]:
    """What each process saved: ``"1-0"`` trained alone (this process), ``"2-0"`` and ``"2-1"`` together."""
    folder = tmp_path_factory.mktemp("ranks")
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    workers = {
        f"2-{rank}": subprocess.Popen(
            [sys.executable, SCRIPT, str(rank), "2", folder], env=here, stderr=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    }
    try:
        runpy.run_path(str(SCRIPT))["main"](0, 1, folder)
        for name, worker in workers.items():
            _, log = worker.communicate(timeout=120)
            assert worker.returncode == 0, f"{name}:\n{log}"
    finally:
        for worker in workers.values():
            worker.kill()
    return {name: torch.load(folder / f"{name}.pt", weights_only=True) for name in ("1-0", *workers)}


@pytest.mark.parametrize("what", ["gradients", "parameters"])
@pytest.mark.parametrize("find_unused", ["False", "True"])
def test_two_processes_train_as_one_does_on_both_graphs(runs, find_unused, what):
    alone = runs["1-0"][find_unused][what]
    for rank in ("2-0", "2-1"):
        for got, expected in zip(runs[rank][find_unused][what], alone, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
    assert sum(bool(t.any()) for t in alone) >= (4 if find_unused == "True" else 6)


@pytest.mark.parametrize("find_unused", ["False", "True"])
def test_the_processes_hold_the_same_bits(runs, find_unused):
    first, second = (runs[rank][find_unused]["parameters"] for rank in ("2-0", "2-1"))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
