"""``python -m benchmarks.warm PACKAGE``: compile what the GPU cases need, many at a time, before they are timed.

Every contender of every case is prepared and called once, at full size, in one of several processes. What they compile
lands in the disk caches that the environment names (``TRITON_CACHE_DIR``, ``TORCHINDUCTOR_CACHE_DIR``, …), where
``python -m benchmarks`` finds it; nothing is checked or timed here. Facts tagged ``compiled`` are measured once, too.
A contender that fails is named and left to the driver, which records why.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from benchmarks.case import Case, Skip, matches
from benchmarks.declarations import declarations
from benchmarks.driver import OURS, reason
from benchmarks.processes import run_all

Job = tuple[str, str]
"""Names of a case and a contender, or of a fact and nothing."""

__all__ = ["forget_choices", "jobs_of", "main", "work"]


def jobs_of(package: str, patterns: Sequence[str], without: Sequence[str], device: str) -> Iterator[Job]:
    """What there is to compile, in the order of the cases; `without` names peers that are left out."""
    declared = declarations(package)
    for case in declared.cases():
        if device in case.devices and matches(case, patterns):
            peers = [name for name, peer in case.peers.items() if not isinstance(peer, Skip) and name not in without]
            yield from ((case.name, name) for name in (OURS, *peers))
    for fact in declared.facts() if hasattr(declared, "facts") else ():
        if device in fact.devices and "compiled" in fact.tags and matches(fact, patterns):
            yield fact.name, ""


def forget_choices(inductor_cache: Path) -> None:
    """Forget which configurations Inductor found fastest: it timed them while other processes had the device."""
    for choice in inductor_cache.rglob("*.best_config"):
        choice.unlink()


def work(connection: Connection, package: str, device_type: str) -> None:
    """Answer jobs with the reason of their failure, empty where they went well, until the other end closes."""
    declared = declarations(package)
    items = [*declared.cases(), *(declared.facts() if hasattr(declared, "facts") else ())]
    found = {item.name: item for item in items if device_type in item.devices}
    device = torch.device("cuda", 0) if device_type == "cuda" else torch.device(device_type)
    while True:
        try:
            name, contender = connection.recv()
        except EOFError:
            return
        try:
            item = found[name]
            if isinstance(item, Case):
                runner = item.ours if contender == OURS else item.peers[contender]
                assert not isinstance(runner, Skip)
                runner(item.make(device))()
            else:
                item.measure(device, item.seeds[0])
            if device.type == "cuda":
                torch.cuda.synchronize(device)
                torch.cuda.empty_cache()
            connection.send("")
        except Exception as error:  # the driver meets it again and says what it means
            connection.send(reason(error))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the caches; status 0 even where contenders fail, as the driver's tables are the place for that."""
    line = argparse.ArgumentParser(prog="python -m benchmarks.warm", description="Compile before measuring.")
    line.add_argument("package", help="torch-flexattn, or its import name")
    line.add_argument("--filter", action="append", default=[], metavar="TAG|NAME", help="only these; may repeat")
    line.add_argument("--without", action="append", default=[], metavar="PEER", help="leave a peer out; may repeat")
    line.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    line.add_argument("--processes", type=int, default=14, help="at a time (default 14)")
    line.add_argument("--limit", type=float, default=90.0, help="seconds a contender may take (default 90)")
    line.add_argument("--budget", type=float, default=240.0, help="seconds all may take (default 240)")
    options = line.parse_args(arguments)
    try:
        jobs = list(jobs_of(options.package, options.filter, options.without, options.device))
    except ValueError as error:
        line.error(str(error))
    if not jobs:
        line.error(f"no case on {options.device} matches --filter {options.filter}")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # the processes are the parallelism
    jobs.sort(key=lambda job: "backward" not in job[0])  # these compile longest: they must not be the last to begin
    package = (options.package, options.device)
    failed = run_all(work, package, jobs, options.processes, options.limit, options.budget)
    forget_choices(Path(cache_dir()))
    for (name, contender), why in failed.items():
        print(f"{name} {contender}: {why}")
    print(f"{len(jobs) - len(failed)} of {len(jobs)} compiled and called")
    return 0


if __name__ == "__main__":
    sys.exit(main())
