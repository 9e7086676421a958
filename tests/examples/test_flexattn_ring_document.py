"""The example of context parallelism runs on two processes, and says where it differs from one."""

import importlib
import itertools
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ["--length", "768", "--heads", "4", "--width", "8", "--rounds", "1"]


@pytest.fixture
def one_process(monkeypatch):
    """The example, and a group of one process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": 0, "WORLD_SIZE": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("flexattn_ring_document")


def test_two_processes_compute_what_one_does():
    source = EXAMPLES.parent / "packages" / "torch-flexattn" / "src"
    run = subprocess.run(
        [
            *[sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
            *[str(EXAMPLES / "flexattn_ring_document.py"), "--device", "cpu", *SMALL],
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(source)}, capture_output=True, text=True,
        timeout=150, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert "768 tokens" in run.stdout
    assert "2 ranks on cpu" in run.stdout
    rows = re.findall(r"^(\w+) +(\w+) +(\d\.\d+) +\d+\.\d ms +difference (\S+)$", run.stdout, re.M)
    assert [row[:2] for row in rows] == [
        (kind, method) for kind in ("contiguous", "zigzag", "balanced") for method in ("all_gather", "ring")
    ]
    imbalance = {kind: float(found) for kind, _, found, _ in rows}
    assert 1 <= imbalance["balanced"] <= imbalance["contiguous"]
    assert all(float(gap) <= 1e-6 for *_, gap in rows)


def test_a_difference_above_the_tolerance_is_an_error(one_process, capsys):
    assert one_process.main([*SMALL, "--tolerance", "-1"]) == 1
    assert "above --tolerance -1.0e+00" in capsys.readouterr().err


def test_documents_fill_the_row(one_process):
    bounds = one_process.document_bounds(5000, 0).tolist()
    lengths = [b - a for a, b in itertools.pairwise(bounds)]
    assert bounds[0] == 0
    assert bounds[-1] == 5000
    assert min(lengths) > 0
    assert max(lengths) > 8 * sorted(lengths)[len(lengths) // 2]


def test_sizes_that_do_not_fit_are_named(one_process, capsys):
    with pytest.raises(SystemExit):
        one_process.main(["--kv-heads", "0"])
    assert "--kv-heads must be at least 1, got 0" in capsys.readouterr().err
