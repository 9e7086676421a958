"""Jobs shared out to a few processes that stay, so that each imports its libraries once.

A process that fails at a job, dies over it or takes too long is replaced: what it left behind (a broken CUDA context,
say) costs no other job.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from benchmarks.progress import Progress

Job = tuple[str, ...]
Work = Callable[..., None]

__all__ = ["run_all"]


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection
    job: Job
    deadline: float

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()


def run_all(
    work: Work,
    arguments: tuple[Any, ...],
    jobs: Sequence[Job],
    processes: int,
    limit_s: float,
    budget_s: float = math.inf,
) -> dict[Job, str]:
    """Have all jobs done; returns those that failed, with the reason.

    Args:
        work: ``work(connection, *arguments)`` receives jobs from the connection and answers each by a text, empty where
            it went well, until `EOFError`. It runs in new processes, so it must be importable.
        arguments: see ``work``.
        jobs: what is sent.
        processes: how many at a time.
        limit_s: seconds a job may take, the start of a process included.
        budget_s: seconds all may take; what is not done by then counts as failed.
    """
    waiting, failed, progress = deque(jobs), dict[Job, str](), Progress(len(jobs))
    workers: list[_Worker] = []
    end = time.monotonic() + budget_s

    def hand_out(worker: _Worker) -> bool:
        if not waiting:
            worker.stop()
            return False
        worker.job, worker.deadline = waiting.popleft(), time.monotonic() + limit_s
        progress.step(" ".join(worker.job))
        worker.connection.send(worker.job)
        return True

    try:
        while waiting or workers:
            while waiting and len(workers) < processes:
                workers.append(_start(work, arguments))
                hand_out(workers[-1])
            first = min(end, *(worker.deadline for worker in workers))
            ready = wait([worker.connection for worker in workers], max(0.0, first - time.monotonic()))
            kept = []
            for worker in workers:
                if worker.connection in ready:
                    try:
                        why = worker.connection.recv()
                    except EOFError:
                        failed[worker.job] = "its process died"
                        worker.stop()
                        continue
                    if why:
                        failed[worker.job] = why
                        worker.stop()
                    elif hand_out(worker):
                        kept.append(worker)
                elif time.monotonic() >= worker.deadline:
                    failed[worker.job] = f"took longer than {limit_s:g} s"
                    worker.stop()
                else:
                    kept.append(worker)
            workers = kept
            if time.monotonic() >= end:
                late = f"not done within {budget_s:g} s"
                failed |= dict.fromkeys([*(worker.job for worker in workers), *waiting], late)
                break
    finally:
        for worker in workers:
            worker.stop()
        progress.close()
    return failed


def _start(work: Work, arguments: tuple[Any, ...]) -> _Worker:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours, (), 0.0)
