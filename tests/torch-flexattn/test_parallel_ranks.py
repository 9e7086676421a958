"""Context parallelism on two and on three processes gives what one process gives."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("attend_in_parallel.py")


def load_script():
    spec = importlib.util.spec_from_file_location("attend_in_parallel", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["attend_in_parallel"] = module
    spec.loader.exec_module(module)
    return module


CASES, METHODS, RANKS = (getattr(load_script(), name) for name in ("CASES", "METHODS", "RANKS"))


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each rank says of all its calls."""
    folder = tmp_path_factory.mktemp("ranks")
    source = SCRIPT.parents[2] / "packages" / "torch-flexattn" / "src"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(source)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), str(rank)], env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in range(RANKS)
    ]
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=150)
            assert rank.returncode == 0, errors[-2000:]
    finally:
        for rank in ranks:
            rank.kill()
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


ALL = [(name, *rest) for name, case in CASES.items() for rest in itertools.product(case.kinds, METHODS, (2, RANKS))]


@pytest.mark.parametrize("name, kind, method, world", [entry for entry in ALL if entry[0] != "bfloat16"])
def test_every_rank_has_its_part_of_what_one_process_has(said, name, kind, method, world):
    ranks = said[RANKS - world :]
    for found in ranks:
        gaps = found[f"{name}/{kind}/{method}/{world}"]
        assert {"out", "lse", "q", "k", "v", "whole"} <= set(gaps)
        assert ("table" in gaps) == CASES[name].bias
        assert ("sinks" in gaps) == CASES[name].sinks
        assert max(gaps.values()) <= 1e-6, gaps


@pytest.mark.parametrize("name, kind, method, world", [entry for entry in ALL if entry[0] == "bfloat16"])
def test_16_bits_are_as_near_the_exact_result_as_in_one_process(said, name, kind, method, world):
    for found in said[RANKS - world :]:
        gaps = found[f"{name}/{kind}/{method}/{world}"]
        for part in ("out", "lse", "q", "k", "v"):
            assert gaps[part] <= 2 * gaps[f"{part} alone"] + 1e-6, part


def test_a_ring_runs_no_kernel_where_nothing_is_visible(said):
    assert [found["calls"] for found in said] == [1] * RANKS


def test_plans_and_groups_that_do_not_fit_are_named(said):
    for found in said:
        assert found["refusals"][:2] == [f"plan is for 2 ranks, but group has {RANKS}"] * 2
    assert said[0]["refusals"][2:] == ["group does not hold this process, of rank 0"]
