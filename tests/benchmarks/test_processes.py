"""Jobs in processes: all are done, and a bad one costs nothing but itself."""

import multiprocessing
import os
import time

import pytest

from benchmarks.processes import run_all


def work(connection, folder):
    """Writes a file a job, unless the job says otherwise."""
    spoilt = False
    while True:
        try:
            (name,) = connection.recv()
        except EOFError:
            return
        if name == "dies":
            os._exit(1)
        if name == "hangs":
            time.sleep(60)
        if name == "fails" or spoilt:
            spoilt = True
            connection.send("RuntimeError: it failed")
        else:
            (folder / name).write_text(str(os.getpid()))
            connection.send("")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Failures of some jobs on two processes, and the files that the others wrote."""
    folder = tmp_path_factory.mktemp("jobs")
    jobs = [(name,) for name in ("a", "fails", "b", "dies", "c", "hangs", "d", "e", "f")]
    failed = run_all(work, (folder,), jobs, 2, 5.0)
    return failed, {path.name: path.read_text() for path in folder.iterdir()}


def test_every_good_job_is_done_though_others_fail_die_or_hang(done):
    assert set(done[1]) == set("abcdef")


def test_bad_jobs_have_their_reason(done):
    assert done[0] == {
        ("fails",): "RuntimeError: it failed",
        ("dies",): "its process died",
        ("hangs",): "took longer than 5 s",
    }


def test_what_is_not_done_in_the_time_of_all_is_said_and_its_processes_end(tmp_path):
    late = "not done within 1.5 s"
    assert run_all(work, (tmp_path,), [("hangs",), ("a",)], 1, 60.0, 1.5) == {("hangs",): late, ("a",): late}
    assert not multiprocessing.active_children()


def test_a_process_does_several_jobs(done):
    assert len(set(done[1].values())) < len(done[1])
