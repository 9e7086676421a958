"""``python -m benchmarks PACKAGE``: run a package's cases, print the table, save the result file.

Works from a bare checkout: every ``packages/*/src`` is put on ``sys.path`` before the package's cases are imported.
Exit status 1 when ours was wrong somewhere.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import torch

from benchmarks import provenance, table
from benchmarks.case import Case, Fact, matches
from benchmarks.ceilings import Ceilings
from benchmarks.clock import clock_for
from benchmarks.declarations import declarations
from benchmarks.driver import DeviceLost, Refused, measure_fact, reason, run_case
from benchmarks.progress import Progress
from benchmarks.result import Result, load, merge, save, significant

ROUNDS, QUICK_ROUNDS = 30, 10


def parser() -> argparse.ArgumentParser:
    """The command line."""
    line = argparse.ArgumentParser(prog="python -m benchmarks", description="Ours beside named peers.")
    line.add_argument("package", help="torch-tcgnn, or its import name")
    line.add_argument("--out", type=Path, help="result file (JSON); saved after every case")
    line.add_argument("--merge", action="store_true", help="keep what --out holds and this run does not measure")
    line.add_argument("--filter", action="append", default=[], metavar="TAG|NAME", help="only these; may repeat")
    line.add_argument("--quick", action="store_true", help=f"only cases tagged 'quick', {QUICK_ROUNDS} rounds")
    line.add_argument("--rounds", type=int, help=f"samples of each contender (default {ROUNDS}, at least that many)")
    line.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda where there is one")
    line.add_argument("--threads", type=int, default=provenance.available_cpus(), help="CPU threads (default: all)")
    line.add_argument("--without", action="append", default=[], metavar="PEER", help="leave a peer out; may repeat")
    line.add_argument("--commit", help="commit to record where there is no git")
    line.add_argument("--list", action="store_true", help="name the cases and stop")
    return line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status."""
    line = parser()
    options = line.parse_args(arguments)
    least = QUICK_ROUNDS if options.quick else ROUNDS
    rounds = least if options.rounds is None else options.rounds
    if rounds < least:
        line.error(f"--rounds {rounds} is below {least}: medians of fewer samples are not reported")
    if options.device == "cuda" and not torch.cuda.is_available():
        line.error("--device cuda: torch sees no CUDA device here")
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    try:
        declared = declarations(options.package)
    except ValueError as error:
        line.error(str(error))
    wanted = [*options.filter]
    items = [
        item
        for item in (*declared.cases(), *(declared.facts() if hasattr(declared, "facts") else ()))
        if matches(item, wanted) and (not options.quick or "quick" in item.tags) and device.type in item.devices
    ]
    if options.list:
        for item in items:
            peers = ", ".join(item.peers) if isinstance(item, Case) else "fact"
            print(f"{item.name}  [{' '.join(item.tags)}]  {peers}")
        return 0
    if not items:
        line.error(f"no case on {device.type} matches --filter {wanted}" + (" --quick" if options.quick else ""))
    names = [item.name for item in items]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        line.error(f"names appear twice on {device.type}: {doubled}")
    torch.set_num_threads(options.threads)
    result = _run(options, declared, items, device, rounds)
    _print(result)
    refused = [name for name, why in result.not_run.items() if why.startswith("refused")]
    return 1 if refused else 0


def _run(
    options: argparse.Namespace, declared: ModuleType, items: Sequence[Case | Fact], device: torch.device, rounds: int
) -> Result:
    hardware = provenance.device_name(device)
    threads = torch.get_num_threads()
    result = Result(
        package=options.package.replace("_", "-"),
        device=hardware,
        slug=provenance.device_slug(hardware, device_type=device.type, threads=threads),
        date=datetime.now(UTC).date().isoformat(),
        commit=options.commit or provenance.commit(),
        threads=threads,
        versions=provenance.versions(getattr(declared, "PEERS", ())),
    )
    before = load(options.out) if options.merge and options.out and options.out.exists() else None
    clock, ceilings = clock_for(device), Ceilings(device)
    progress = Progress(len(items))
    for item in items:
        progress.step(item.name)
        try:
            if isinstance(item, Case):
                measured = run_case(item, device, clock, ceilings, rounds=rounds, without=options.without)
                result = replace(result, cases=[*result.cases, measured])
            else:
                result = replace(result, facts=[*result.facts, measure_fact(item, device)])
        except Refused as error:
            result = replace(result, not_run=result.not_run | {item.name: f"refused: {error}"})
        except FileNotFoundError as error:
            result = replace(result, not_run=result.not_run | {item.name: f"no data: {error}"})
        except ImportError as error:
            result = replace(result, not_run=result.not_run | {item.name: f"not installed: {error}"})
        except torch.OutOfMemoryError as error:
            result = replace(result, not_run=result.not_run | {item.name: f"out of memory: {str(error)[:200]}"})
        except DeviceLost:
            raise
        except Exception as error:  # what else goes wrong in one item is no reason to lose the others
            result = replace(result, not_run=result.not_run | {item.name: f"refused: {item.name}: {reason(error)}"})
        roofs = {name: significant(value) for name, value in ceilings.measured.items()}
        result = replace(result, ceilings=roofs)
        if options.out:
            save(merge(before, result) if before else result, options.out)
    progress.close()
    return result


def _print(result: Result) -> None:
    torch_version = result.versions["torch"]
    print(f"{result.package} on {result.device}, torch {torch_version}, commit {result.commit[:12]}, {result.date}")
    for name, value in result.ceilings.items():
        print(f"  {name} = {value:.3g}")
    if result.cases:
        print("\nmedian ms a call; in brackets peer / ours, so more than 1× means ours is faster")
        _print_tables(result, "warm")
        if any(case.cold for case in result.cases):
            print("\nwith an empty L2")
            _print_tables(result, "cold")
        if any(case.call for case in result.cases):
            print("\non the host's clock, launches included")
            _print_tables(result, "call")
    if result.facts:
        print("\n" + table.terminal(table.fact_rows(result.facts)))
    if lines := table.skipped_lines(result):
        print("\nnot measured")
        print("\n".join(f"  {text}" for text in lines))


def _print_tables(result: Result, sample: table.Sample) -> None:
    for cases in table.by_kind(result.cases):
        print("\n" + table.terminal(table.case_rows(cases, sample)))


if __name__ == "__main__":
    sys.exit(main())
