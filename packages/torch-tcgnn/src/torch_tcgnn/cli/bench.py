"""``bench``: an unweighted SpMM beside what PyTorch and PyG have built in, on named graphs, on this device.

All contenders run in one process on the same inputs, in turns; the figure is the median. A contender that is wrong,
does not fit or is not installed is listed with its reason. The full comparison with its committed results is the
project's ``benchmarks/``; this one needs nothing but the package.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from ..data import GraphData
from ..functional import explain, spmm
from ..graph import TCGraph
from ..stopwatch import kernel_medians_us, medians_us
from . import peers
from .options import DTYPES, add_device, chosen_device
from .progress import track
from .sources import HELP, add_options, open_graph
from .table import aligned, number, write_json

SETS = {
    "quick": ("com-amazon/40-like", "YeastH/200-like"),
    "planetoid": ("cora", "citeseer", "pubmed"),
    "generated": ("com-amazon-like", "artist-like", "amazon0505-like", "soc-BlogCatalog-like"),
    "G": (
        "amazon_computers", "blogcatalog", "flickr", "musae_github", "PROTEINS", "amazon0505-like", "artist-like",
        "com-amazon-like", "soc-BlogCatalog-like", "reddit-like", "arxiv-like", "products/8-like", "YeastH-like",
    ),
}  # fmt: skip
WIDTHS = (32, 128)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Largest error allowed, relative to the sum of magnitudes: a little over the rounding of the result."""


@dataclass(frozen=True)
class Case:
    """One graph at one width.

    Attributes:
        graph: its name.
        num_nodes: nodes.
        num_edges: edges.
        width: features.
        kernel: what ours ran.
        ours_us: median microseconds of ours.
        peers_us: of each contender.
        speedup: ``peers_us / ours_us``.
        skipped: contenders that have no time, and why.
        max_rel_err: largest error of ours against float64, relative to the sum of magnitudes.
        gather_bytes: bytes of feature rows that ours reads.
        gather_bytes_per_s: over ``ours_us``.
        copy_fraction: of that rate, over the rate of a copy inside the cache.
    """

    graph: str
    num_nodes: int
    num_edges: int
    width: int
    kernel: str
    ours_us: float
    peers_us: dict[str, float]
    speedup: dict[str, float]
    skipped: dict[str, str]
    max_rel_err: float
    gather_bytes: int
    gather_bytes_per_s: float
    copy_fraction: float


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("bench", help="time SpMM beside built-in peers", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--set", choices=sorted(SETS), help="a list of graphs (default: generated; minutes on a CPU)")
    which.add_argument("--graphs", nargs="+", metavar="GRAPH", help=HELP)
    add_options(parser)
    parser.add_argument("--widths", nargs="+", type=int, metavar="F", help="feature widths (default: 32 128)")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32", help="feature type")
    parser.add_argument("--peers", nargs="+", choices=["all", *peers.PEERS], default=["all"], help="contenders")
    add_device(parser)
    parser.add_argument("--rounds", type=int, metavar="N", help="samples of each contender (default: 30)")
    parser.add_argument("--quick", action="store_true", help="a first look: small graphs, widths 16 and 64, 5 rounds")
    parser.add_argument("--json", metavar="OUT", help="write everything to this file as well")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print the table."""
    device, dtype = chosen_device(options.device), DTYPES[options.dtype]
    widths = options.widths or ((16, 64) if options.quick else WIDTHS)
    rounds = (5 if options.quick else 30) if options.rounds is None else options.rounds
    for name, values in (("--widths", widths), ("--rounds", [rounds])):
        if min(values) < 1:
            raise ValueError(f"{name} must be at least 1, got {min(values)}")
    graphs = options.graphs or SETS[options.set or ("quick" if options.quick else "generated")]
    names = list(peers.PEERS) if "all" in options.peers else list(dict.fromkeys(options.peers))
    rate = copy_rate(device)
    cases = []
    for name in track(graphs, "bench"):
        graph = open_graph(name, options).to(device)
        cases += [measure(graph, width, dtype, names, rounds=rounds, copy_bytes_per_s=rate) for width in widths]
    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    if options.json:
        content = {
            "device": device_name,
            "threads": torch.get_num_threads(),
            "dtype": options.dtype,
            "rounds": rounds,
            "versions": versions(),
            "copy_bytes_per_s": rate,
            "cases": [asdict(case) for case in cases],
        }
        write_json(options.json, content)
    print(f"SpMM, unweighted, {options.dtype}, {device_name}: median µs, and how many times ours is faster")
    print(aligned(table(cases, names)))
    for line in dict.fromkeys(f"{c.graph}: {peer} skipped, {why}" for c in cases for peer, why in c.skipped.items()):
        print(line)


def measure(
    graph: GraphData,
    width: int,
    dtype: torch.dtype,
    names: Sequence[str],
    *,
    rounds: int,
    copy_bytes_per_s: float,
) -> Case:
    """Check, then time ours and the peers on one graph, on the graph's device.

    Raises:
        ArithmeticError: ours is wrong.
    """
    device = graph.edge_index.device
    g = TCGraph.from_edge_index(graph.edge_index, graph.num_nodes, validate=False)
    draw = torch.Generator(device).manual_seed(0)
    x = torch.randn(graph.num_nodes, width, device=device, generator=draw).to(dtype)
    reference = peers.reference(graph, x)
    error = _error(spmm(g, x), *reference)
    if not error <= TOLERANCE[dtype]:
        raise ArithmeticError(f"{graph.name}, width {width}, {dtype}: ours is off by {error:.2e} of float64")
    calls: dict[str, Any] = {"ours": lambda: spmm(g, x)}
    skipped: dict[str, str] = {}
    for name in names:
        try:
            call = peers.PEERS[name](graph, x)
            off = _error(call(), *reference)
            if not off <= TOLERANCE[dtype]:
                raise peers.Skip(f"it is off by {off:.2e} of float64")
            calls[name] = call
        except (peers.Skip, ImportError, RuntimeError) as reason:
            skipped[name] = str(reason).strip().splitlines()[0]
    with torch.no_grad():
        us = medians_us(calls, device, rounds=rounds)
    ours = us.pop("ours")
    why = explain(g, x)
    gather_bytes = g.prepared(dtype).gathered(why.path) * width * x.element_size()
    return Case(
        graph=graph.name,
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        width=width,
        kernel=why.kernel,
        ours_us=ours,
        peers_us=us,
        speedup={name: theirs / ours for name, theirs in us.items()},
        skipped=skipped,
        max_rel_err=error,
        gather_bytes=gather_bytes,
        gather_bytes_per_s=gather_bytes / ours * 1e6,
        copy_fraction=gather_bytes / ours * 1e6 / copy_bytes_per_s,
    )


def _error(out: Tensor, exact: Tensor, magnitude: Tensor) -> float:
    """Largest ``|out − exact| / Σ|terms|``."""
    if exact.numel() == 0:
        return 0.0
    return float(((out.double() - exact).abs() / magnitude.clamp(min=1e-30)).max())


def copy_rate(device: torch.device) -> float:
    """Bytes a second, read and written, of an elementwise kernel whose buffers stay in the cache."""
    sizes = (1 << 22, 1 << 23, 1 << 24) if device.type == "cuda" else (1 << 18, 1 << 20, 1 << 22)
    rates = []
    for size in sizes:
        source = torch.ones(size // 4, device=device)
        target = torch.empty_like(source)
        calls = {"copy": lambda source=source, target=target: torch.neg(source, out=target)}
        rates.append(2 * size / kernel_medians_us(calls, device)["copy"] * 1e6)
    return max(rates)


def versions() -> dict[str, str]:
    """What is installed of the packages that matter here."""
    found = {}
    for name in ("torch", "triton", "cuda-core", "torch-geometric", "torch-scatter", "torch-sparse"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def table(cases: Sequence[Case], names: Sequence[str]) -> list[list[str]]:
    """A header, one row a case, and the geometric mean of each peer's ratio."""
    rows = [["graph", "width", "kernel", "ours", *names, "gather GB/s", "of a copy"]]
    for case in cases:
        cells = [
            f"{number(case.peers_us[n])} ({case.speedup[n]:.2f})" if n in case.peers_us else "skipped" for n in names
        ]
        rate = [number(case.gather_bytes_per_s / 1e9), f"{100 * case.copy_fraction:.0f} %"]
        rows.append([case.graph, str(case.width), case.kernel, number(case.ours_us), *cells, *rate])
    means = []
    for name in names:
        ratios = [math.log(case.speedup[name]) for case in cases if name in case.speedup]
        means.append(f"{math.exp(sum(ratios) / len(ratios)):.2f}" if ratios else "")
    return [*rows, ["geometric mean", "", "", "", *means, "", ""]]
