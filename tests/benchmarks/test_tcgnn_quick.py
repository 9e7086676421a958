"""``--quick`` measures something on every machine: on a generated graph where the real ones are missing."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.torch_tcgnn import tasks

ROOT = Path(__file__).resolve().parents[2]


def test_quick_graphs_are_there(monkeypatch):
    assert tasks.load_graph(tasks.quick_graphs()[0]).num_edges > 0
    monkeypatch.setattr(sys.modules["torch_tcgnn.data.locate"], "search_path", lambda: iter(()))
    assert tasks.quick_graphs() == (tasks.STAND_IN,)


def test_a_stand_in_makes_a_task_without_data(monkeypatch):
    monkeypatch.setattr(sys.modules["torch_tcgnn.data.locate"], "search_path", lambda: iter(()))
    task = tasks.make_task(tasks.STAND_IN, 4, torch.device("cpu"), weighted=True)
    assert task.num_nodes == 8_372
    assert task.weight is not None
    assert task.weight.shape == (task.num_edges,) == (46_294,)


def test_without_data_the_quick_cases_are_those_of_the_stand_in(tmp_path):
    code = (
        "import sys, torch_tcgnn.data; sys.modules['torch_tcgnn.data.locate'].search_path = lambda: iter(());"
        "from benchmarks.__main__ import main; main(['torch-tcgnn', '--quick', '--device', 'cpu', '--list'])"
    )
    path = f"{ROOT}:{ROOT / 'packages' / 'torch-tcgnn' / 'src'}"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    names = [line.split()[0] for line in found.stdout.splitlines()]
    assert any(name.startswith("spmm/com-amazon/40-like/") for name in names), found.stderr
    assert not any("cora" in name for name in names)
