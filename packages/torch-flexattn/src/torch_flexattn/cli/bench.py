"""``bench``: attention of this package beside PyTorch's and others', timed on this machine.

With ``--deterministic``, no times: whether the same calls give the same bits in every run.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
from pathlib import Path
from typing import Any

import torch

from ..bench import chart
from ..bench.lineup import KNOWN, absences, chosen
from ..bench.race import Result, race
from ..bench.repeat import Repeated, name_of, repeat, repeated_cases
from ..bench.report import Table, as_json, reasons, setting
from ..bench.suites import SUITES, Case
from ..errors import InputError
from .options import add_device, count, device_of
from .progress import Progress

ROUNDS, FEW = 30, 3
REPEATS = 20


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("bench", help="time attention beside PyTorch's", description=__doc__)
    parser.add_argument(
        "--suite", required=True, metavar="NAMES", help=f"of {', '.join(SUITES)}, with commas between, or all"
    )
    parser.add_argument(
        "--peers", metavar="NAMES",
        help=f"auto (default), all, none, or of {', '.join(KNOWN)}, with commas between",
    )  # fmt: skip
    parser.add_argument("--only", metavar="PATTERN", help="cases with such names, as 'backward/*/s16384/*'")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw how many times faster ours is")
    parser.add_argument("--quick", action="store_true", help="a few small cases, three rounds")
    parser.add_argument(
        "--deterministic", action="store_true",
        help="instead of times: run each case forward and backward with deterministic=True and compare all bits",
    )  # fmt: skip
    parser.add_argument(
        "--repeat", type=count, metavar="N", help=f"runs of a case with --deterministic (default: {REPEATS})"
    )
    add_device(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table as it grows, then why somebody has no time.

    Exit status 1 where one of ours failed, or gave other bits.
    """
    device = device_of(options)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    cases = _cases(options)
    _check_files(options)
    if options.deterministic:
        return _repeat(options, cases, device, dtype)
    if options.repeat is not None:
        raise InputError(f"--repeat is for --deterministic, got --repeat {options.repeat} without it")
    return _race(options, cases, device, dtype)


def _race(options: argparse.Namespace, cases: dict[str, list[Case]], device: torch.device, dtype: torch.dtype) -> int:
    rounds = FEW if options.quick else ROUNDS
    lineup = chosen("auto" if options.peers is None else options.peers, list(cases), device)
    progress = Progress(sum(map(len, cases.values())))
    found: dict[str, list[Result]] = {}
    absent: dict[str, str] = {}
    for suite, own in cases.items():
        missing = absences(suite, lineup[suite], device)
        absent |= missing
        peers = [name for name in lineup[suite] if name not in missing]
        if len(cases) > 1:
            print(f"suite {suite}")
        table = Table(peers, max(len(case.name) for case in own), device.type == "cuda")
        print(table.heading(), flush=True)
        results = found.setdefault(suite, [])
        for case in own:
            progress.step(case.name)
            results.append(race(case, peers, device, dtype, rounds, progress.note))
            progress.clear()
            print(table.line(results[-1]), flush=True)
            if options.json is not None:
                _write_json(options.json, as_json(found, options.quick, device, dtype, rounds, absent))
        if len(results) > 1 and peers:
            print(table.means(results))
    everything = [result for results in found.values() for result in results]
    for line in reasons(everything, absent):
        print(line)
    if options.plot is not None:
        where = setting(device, dtype)
        title = f"torch-flexattn on {where['device']}, {where['dtype']}, torch {where['versions']['torch']}"
        options.plot.write_text(chart.svg(title, found), encoding="utf-8")
    return int(any(result.ours_ms is None for result in everything))


def _repeat(options: argparse.Namespace, cases: dict[str, list[Case]], device: torch.device, dtype: torch.dtype) -> int:
    for name in ("peers", "plot"):
        if getattr(options, name) is not None:
            raise InputError(f"--{name} is for times, got --{name} {getattr(options, name)} with --deterministic")
    times = REPEATS if options.repeat is None else options.repeat
    if times < 2:
        raise InputError(f"--repeat must be at least 2, got {times}: one run has nothing to be compared with")
    wanted = {suite: repeated_cases(own) for suite, own in cases.items()}
    width = max(44, *(len(name_of(case)) for own in wanted.values() for case in own)) + 1
    progress = Progress(sum(map(len, wanted.values())))
    found: dict[str, list[Repeated]] = {}
    print(f"{'case':<{width}}{'kernels':<16}{'runs':>5}  bits")
    for suite, own in wanted.items():
        for case in own:
            progress.step(name_of(case))
            result = repeat(case, device, dtype, times)
            found.setdefault(suite, []).append(result)
            progress.clear()
            print(f"{result.name:<{width}}{result.kernel:<16}{result.runs:>5}  {_verdict(result)}", flush=True)
            if options.json is not None:
                _write_json(options.json, _bits_as_json(options, found, times, device, dtype))
    everything = [result for results in found.values() for result in results]
    equal = sum(result.is_equal for result in everything)
    print(f"{equal} of {len(everything)} cases gave equal bits in {times} runs")
    return int(equal < len(everything))


def _verdict(result: Repeated) -> str:
    if result.error:
        return f"failed: {result.error}"
    if result.is_equal:
        return "equal"
    return "differ: " + "; ".join(f"{name} {how}" for name, how in result.differing.items())


def _bits_as_json(
    options: argparse.Namespace, found: dict[str, list[Repeated]], times: int, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    return {
        "suite": ",".join(found),
        "quick": options.quick,
        "deterministic": True,
        "repeat": times,
        **setting(device, dtype),
        "equal": all(result.is_equal for results in found.values() for result in results),
        "cases": [{"suite": suite, **result.as_dict()} for suite, results in found.items() for result in results],
    }


def _cases(options: argparse.Namespace) -> dict[str, list[Case]]:
    """The cases of the suites that ``--suite`` names, as far as ``--only`` wants them."""
    names = list(SUITES) if options.suite == "all" else [name.strip() for name in options.suite.split(",")]
    for name in names:
        if name not in SUITES:
            raise InputError(f"--suite: {name!r} is none of all, {', '.join(SUITES)}")
        if names.count(name) > 1:
            raise InputError(f"--suite: {name!r} is there more than once: {options.suite!r}")
    cases = {name: list(SUITES[name](options.quick)) for name in names}
    if options.only is None:
        return cases
    kept = {name: [c for c in own if fnmatch.fnmatchcase(c.name, options.only)] for name, own in cases.items()}
    if not any(kept.values()):
        first = next(iter(cases.values()))[0].name
        raise InputError(f"--only: no case is called {options.only!r}; they are called like {first}")
    return {name: own for name, own in kept.items() if own}


def _check_files(options: argparse.Namespace) -> None:
    """Results can be written: better said now than after an hour."""
    for name, path in (("json", options.json), ("plot", options.plot)):
        if path is None:
            continue
        if not path.absolute().parent.is_dir():
            raise InputError(f"--{name}: there is no folder {path.absolute().parent}")
        if path.is_dir():
            raise InputError(f"--{name}: {path} is a folder")
    if options.plot is not None and options.plot.suffix != ".svg":
        raise InputError(f"--plot must end in .svg, got {str(options.plot)!r}")


def _write_json(path: Path, found: dict[str, Any]) -> None:
    """Whole or not at all: a run that is stopped leaves the cases until then."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)
