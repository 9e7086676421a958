"""``inspect``: what one graph looks like to the kernels, and what an SpMM over it costs by each path."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from ..inspect import WIDTHS, Inspection, inspect
from ..reorder import REORDERS
from .options import DTYPES, add_device, chosen_device
from .sources import HELP, add_options, open_graph
from .table import aligned, number, write_json


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("inspect", help="describe one graph", description=__doc__)
    parser.add_argument("graph", metavar="GRAPH", help=HELP)
    add_options(parser)
    parser.add_argument("--reorder", nargs="+", choices=REORDERS, default=list(REORDERS), help="row orders to try")
    parser.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS), metavar="F", help="feature widths")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32", help="feature type")
    add_device(parser)
    parser.add_argument("--measure", action="store_true", help="time the kernels as well")
    parser.add_argument("--json", metavar="OUT", help="write everything to this file as well")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the description."""
    device = chosen_device(options.device)
    found = inspect(
        open_graph(options.graph, options),
        reorders=options.reorder,
        widths=options.widths,
        dtype=DTYPES[options.dtype],
        device=device,
        measure=options.measure,
    )
    if options.json:
        write_json(options.json, asdict(found))
    print(describe(found, on_gpu=device.type == "cuda"))


def describe(found: Inspection, *, on_gpu: bool) -> str:
    """The description as text."""
    d = found.degrees
    direction = "symmetric" if found.symmetric else "directed"
    lines = [
        f"{found.name}: {found.num_nodes:,} nodes, {found.num_edges:,} edges ({direction})",
        f"distinct edges {found.distinct_edges:,}, duplicates {found.num_edges - found.distinct_edges:,}, "
        f"self loops {found.self_loops:,}, adjacency filled to {100 * found.fill:.4g} %",
        f"incoming edges of a node: least {d.least}, median {d.median}, mean {d.mean:.2f}, 99 % up to {d.p99}, "
        f"most {d.most:,}; none at {d.empty:,} nodes",
        "",
        "blocks of 8 rows × 8 condensed columns, by row order (nnz/v8: edges that one gathered row serves; nnz/v16: in",
        "windows of 16 rows; on tc: entries in windows that suit tensor cores; used: saves 3 % or more of the time)",
        _windows(found),
        *(f"{name}: skipped, {reason}" for name, reason in found.skipped.items()),
        "",
        f"predicted µs of an SpMM, {found.dtype}, {_whose(found, on_gpu)}",
        "(cuda: CUDA cores; tc: tensor cores, by row order)",
        _times(found, "predicted_us"),
    ]
    if any(times.measured_us for times in found.times):
        lines += ["", f"measured µs of an SpMM, {found.dtype}, median, {found.device}", _times(found, "measured_us")]
    return "\n".join(lines)


def _whose(found: Inspection, on_gpu: bool) -> str:
    return f"on {found.device}" if on_gpu else "on the GPU of the shipped rates (compute capability 9.0)"


def _windows(found: Inspection) -> str:
    rows = [["order", "blocks", "filled", "nnz/v8", "nnz/v16", "on tc", "longest window", "imbalance", "MiB", "used"]]
    rows += [
        [
            name,
            f"{stats.blocks:,}",
            f"{100 * stats.density:.1f} %",
            f"{stats.reuse:.2f}",
            f"{stats.nnz / max(stats.v16, 1):.2f}",
            f"{100 * stats.tc_fraction:.0f} %",
            f"{stats.max_window:,}",
            f"{stats.imbalance:.2f}",
            number(stats.num_bytes / 2**20),
            "" if name == "none" else "yes" if name in found.used else "no",
        ]
        for name, stats in found.windows.items()
    ]
    return aligned(rows)


def _times(found: Inspection, which: str) -> str:
    paths = list(getattr(found.times[0], which))
    rows = [["width", *paths]]
    rows += [[str(t.width), *(number(getattr(t, which)[path]) for path in paths)] for t in found.times]
    return aligned(rows)
