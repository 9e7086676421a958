"""``tune``: fit the choice between tensor cores and CUDA cores to this GPU, and keep the result for later processes."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from ..cost import dtype_name, rates_file
from ..tune import DTYPES as TUNED
from ..tune import WIDTHS, tunable, tune
from .options import DTYPES, add_device
from .progress import track
from .table import aligned, number, write_json


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("tune", help="fit the cost model to this GPU", description=__doc__)
    add_device(parser)
    names = [dtype_name(dtype) for dtype in TUNED]
    parser.add_argument("--dtypes", nargs="+", choices=names, default=names, help="feature types to fit")
    parser.add_argument(
        "--widths", nargs="+", type=int, default=list(WIDTHS), metavar="F", help="feature widths to time"
    )
    parser.add_argument("--json", metavar="OUT", help="write the fit to this file as well")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure, fit, store, and print what came out."""
    try:
        device = tunable(options.device)
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    fits = tune(
        device,
        dtypes=[DTYPES[name] for name in options.dtypes],
        widths=options.widths,
        track=lambda steps: track(steps, "tune"),
    )
    if options.json:
        write_json(options.json, {dtype_name(dtype): asdict(fit) for dtype, fit in fits.items()})
    rows = [["dtype", "path", "fixed", "per row", "per entry", "per byte", "median error"]]
    for dtype, fit in fits.items():
        for path, rate, error in (("tc", fit.rates.blocks, fit.blocks_error), ("cuda", fit.rates.rows, fit.rows_error)):
            values = [number(v) for v in (rate.fixed, rate.per_row, rate.per_entry, rate.per_byte)]
            rows.append([dtype_name(dtype), path, *values, f"{100 * error:.1f} %"])
    print(aligned(rows))
    for dtype, fit in fits.items():
        hits, lost = f"{100 * fit.right:.0f} %", f"{100 * fit.regret:.1f} %"
        print(f"{dtype_name(dtype)}: picks the faster path in {hits} of the calls, loses {lost} of the time on average")
    print(f"stored in {rates_file()}")
