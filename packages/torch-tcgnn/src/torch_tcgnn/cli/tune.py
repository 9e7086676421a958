"""``tune``: find the tilings of both kernels and fit the choice between them to this GPU, for all later processes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..cost import dtype_name, rates_file
from ..tiling import tilings_file
from ..tune import DTYPES as TUNED
from ..tune import WIDTHS, tunable, tune
from ..tune_tilings import Found, tune_tilings
from .options import DTYPES, add_device
from .progress import track
from .table import aligned, number, write_json


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("tune", help="fit the kernels and their choice to this GPU", description=__doc__)
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
    dtypes = [DTYPES[name] for name in options.dtypes]
    found = tune_tilings(device, dtypes=dtypes, widths=options.widths, track=lambda steps: track(steps, "tilings"))
    fits = tune(device, dtypes=dtypes, widths=options.widths, track=lambda steps: track(steps, "choice"))
    if options.json:
        rates = {dtype_name(dtype): asdict(fit) for dtype, fit in fits.items()}
        write_json(options.json, {"rates": rates, "tilings": [_plain(one) for one in found]})
    print(tilings(found))
    print()
    rows = [["dtype", "path", "fixed", "per row", "per entry", "per byte", "median error"]]
    for dtype, fit in fits.items():
        for path, rate, error in (("tc", fit.rates.blocks, fit.blocks_error), ("cuda", fit.rates.rows, fit.rows_error)):
            values = [number(v) for v in (rate.fixed, rate.per_row, rate.per_entry, rate.per_byte)]
            rows.append([dtype_name(dtype), path, *values, f"{100 * error:.1f} %"])
    print(aligned(rows))
    for dtype, fit in fits.items():
        hits, lost = f"{100 * fit.right:.0f} %", f"{100 * fit.regret:.1f} %"
        print(f"{dtype_name(dtype)}: picks the faster path in {hits} of the calls, loses {lost} of the time on average")
    print(f"stored in {rates_file()} and {tilings_file().name}")


def tilings(found: Sequence[Found]) -> str:
    """The tilings that beat the rules, as text."""
    won = [(one, one.tiling) for one in found if one.tiling is not None]
    heading = f"tilings: of {len(found)} kinds of graph and width, {len(won)} gain 3 % or more by other than the rule"
    rows = [["kernel", "element bytes", "row bytes up to", "mean below", "entries below", "tiling", "gain"]]
    rows += [
        [
            one.kind,
            str(one.bucket.element_bytes),
            f"{1 << one.bucket.row_bits:,}",
            f"{1 << one.bucket.mean_bits:,}",
            f"{2 << 2 * one.bucket.size_bits:,}",
            ", ".join(f"{name} {value}" for name, value in tiling._asdict().items()),
            f"{100 * one.gain:.0f} %",
        ]
        for one, tiling in won
    ]
    return f"{heading}\n{aligned(rows)}" if won else heading


def _plain(one: Found) -> dict[str, Any]:
    tiling = None if one.tiling is None else one.tiling._asdict()
    return {"kind": one.kind, **one.bucket._asdict(), "tiling": tiling, "gain": one.gain}
