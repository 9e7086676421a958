"""Filling caches: which contenders are called, and what is said of those that fail."""

import sys
import types

import pytest

from benchmarks import warm
from benchmarks.case import Fact


@pytest.fixture
def toy(toy_case, monkeypatch):
    """`benchmarks.torch_toy` with a case of five contenders, one only of a GPU, and two facts."""
    module = types.ModuleType("benchmarks.torch_toy")
    module.cases = lambda: [toy_case(), toy_case(name="far/64", devices=("cuda",))]
    module.facts = lambda: [
        Fact(name="call/toy", measure=lambda device, seed: 1.0, tags=("compiled",)),
        Fact(name="bytes/toy", measure=lambda device, seed: 1.0),
    ]
    monkeypatch.setitem(sys.modules, "benchmarks.torch_toy", module)


def test_jobs_are_ours_and_the_peers_that_run_and_compiled_facts(toy):
    assert list(warm.jobs_of("torch-toy", [], ["wrong"], "cpu")) == [
        ("rowsum/64", "ours"), ("rowsum/64", "matmul"), ("rowsum/64", "broken"), ("call/toy", ""),
    ]  # fmt: skip


def test_jobs_are_of_the_device_and_the_filter(toy):
    assert {name for name, _ in warm.jobs_of("torch-toy", ["rowsum"], [], "cuda")} == {"rowsum/64", "far/64"}
    assert [name for name, _ in warm.jobs_of("torch-toy", ["call"], [], "cpu")] == ["call/toy"]


class Answers(list):
    """A connection from which some jobs come; keeps the answers."""

    def __init__(self, *jobs):
        self.jobs = list(jobs)

    def recv(self):
        if not self.jobs:
            raise EOFError
        return self.jobs.pop(0)

    def send(self, answer):
        self.append(answer)


def test_a_worker_answers_nothing_or_a_reason(toy):
    answers = Answers(("rowsum/64", "ours"), ("rowsum/64", "broken"), ("call/toy", ""), ("rowsum/64", "wrong"))
    warm.work(answers, "torch-toy", "cpu")
    assert answers == ["", "RuntimeError: no kernel for this shape", "", ""]


def test_choices_of_a_busy_device_are_forgotten_and_kernels_kept(tmp_path):
    (tmp_path / "ab").mkdir()
    for name in ("cab.best_config", "cab.py"):
        (tmp_path / "ab" / name).write_text("x")
    warm.forget_choices(tmp_path)
    assert [path.name for path in (tmp_path / "ab").iterdir()] == ["cab.py"]


def test_a_package_without_cases_is_an_error(capsys):
    with pytest.raises(SystemExit):
        warm.main(["torch-none"])
    assert "no benchmarks for 'torch-none'" in capsys.readouterr().err
