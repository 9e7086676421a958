"""``bench``: attention of this package beside PyTorch's, timed on this machine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from ..bench.contenders import PEERS
from ..bench.race import peers_of, race
from ..bench.report import as_json, heading, line_of, reasons
from ..bench.suites import SUITES
from ..errors import InputError
from .options import add_device, device_of

ROUNDS, FEW = 30, 3
KNOWN = (*PEERS, "torch_flex_eager", "contiguous")


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("bench", help="time attention beside PyTorch's", description=__doc__)
    parser.add_argument("--suite", choices=tuple(SUITES), required=True, help="what is timed")
    parser.add_argument(
        "--peers", default="auto", metavar="NAMES", help=f"auto, none, or of {', '.join(KNOWN)}, with commas between"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    parser.add_argument("--quick", action="store_true", help="a few small cases, three rounds")
    add_device(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table as it grows, then why somebody has no time. Exit status 1 where one of ours failed."""
    device = device_of(options)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    cases = SUITES[options.suite](options.quick)
    peers = _peers(options.peers) or peers_of(cases[0], device)
    if options.peers == "none":
        peers = ()
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise InputError(f"--json: there is no folder {options.json.absolute().parent}")
    print(heading(peers))
    results = []
    for case in cases:
        results.append(race(case, peers, device, dtype, FEW if options.quick else ROUNDS))
        print(line_of(results[-1], peers), flush=True)
        if options.json is not None:
            found = as_json(options.suite, options.quick, device, dtype, results)
            options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for line in reasons(results):
        print(line)
    return int(any(result.ours_ms is None for result in results))


def _peers(text: str) -> tuple[str, ...]:
    if text in ("auto", "none"):
        return ()
    names = tuple(text.split(","))
    for name in names:
        if name not in KNOWN:
            raise InputError(f"--peers: {name!r} is none of {', '.join(KNOWN)}")
    return names
