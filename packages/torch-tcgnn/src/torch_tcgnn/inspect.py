"""What a graph looks like to this package: sizes, degrees, tiles under each row order, predicted and measured times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from . import bitblock
from .cost import Work, dtype_name, rates_on
from .data import GraphData
from .functional import spmm
from .graph import TCGraph
from .reorder import REORDERS, pays, row_order
from .stats import GraphStats, graph_stats
from .stopwatch import kernel_medians_us

WIDTHS = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Degrees:
    """Edges that enter a node.

    Attributes:
        least: smallest degree.
        median: middle degree (the lower one of two).
        mean: mean degree.
        p99: degree that 99 % of the nodes do not exceed.
        most: largest degree.
        empty: nodes that no edge enters.
    """

    least: int
    median: int
    mean: float
    p99: int
    most: int
    empty: int


@dataclass(frozen=True)
class WidthTimes:
    """Times of an unweighted SpMM at one width, by path: ``"cuda"``, ``"tc/<row order>"``, or ``"cpu"``.

    Attributes:
        width: features.
        predicted_us: microseconds by the cost model.
        measured_us: microseconds of the kernels, of row orders those that are used; empty where nothing was measured.
    """

    width: int
    predicted_us: dict[str, float]
    measured_us: dict[str, float]


@dataclass(frozen=True)
class Inspection:
    """Everything that :func:`inspect` finds.

    Attributes:
        name: of the graph.
        num_nodes: nodes.
        num_edges: edges as listed.
        distinct_edges: without duplicates.
        self_loops: edges from a node to itself, as listed.
        symmetric: whether every edge has its reverse.
        fill: distinct edges over the square of the nodes.
        degrees: of the incoming edges.
        windows: block statistics by row order, whether or not it is used.
        used: row orders that a graph built with them would keep: those that save at least 3 % of the predicted time.
        skipped: row orders that could not be computed, and why.
        dtype: of the features of :attr:`times`.
        times: by width.
        device: where times were measured; the prediction is for this GPU, or for the shipped one.
    """

    name: str
    num_nodes: int
    num_edges: int
    distinct_edges: int
    self_loops: int
    symmetric: bool
    fill: float
    degrees: Degrees
    windows: dict[str, GraphStats]
    used: list[str]
    skipped: dict[str, str]
    dtype: str
    times: list[WidthTimes]
    device: str


def inspect(
    graph: GraphData,
    *,
    reorders: Sequence[str] = REORDERS,
    widths: Sequence[int] = WIDTHS,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    measure: bool = False,
    rounds: int = 10,
) -> Inspection:
    """Describe a graph.

    Args:
        graph: what to describe.
        reorders: row orders to try for the windows.
        widths: feature widths to predict (and measure) an SpMM for.
        dtype: feature type.
        device: where to translate and measure.
        measure: time the kernels of each path on a GPU, or the CPU kernel on a CPU.
        rounds: samples of each measured call.

    Raises:
        ValueError: an unknown row order, or a width below 1.

    Example:
        >>> from torch_tcgnn import data
        >>> found = inspect(data.sbm([8] * 4, 1.0, 0.0), reorders=("none",), widths=(16,))
        >>> found.num_edges, found.degrees.most, found.windows["none"].blocks
        (224, 7, 4)
    """
    for name, values, ok in (("reorders", reorders, REORDERS.__contains__), ("widths", widths, lambda w: w >= 1)):
        wrong = [value for value in values if not ok(value)]
        if wrong:
            allowed = ", ".join(REORDERS) if name == "reorders" else "at least 1"
            raise ValueError(f"{name} must be {allowed}, got {wrong[0]!r}")
    device = torch.device(device)
    g = TCGraph.from_edge_index(graph.edge_index.to(device), graph.num_nodes, validate=False)
    windows, used, skipped = _reordered(g, reorders)
    source, target = graph.edge_index
    return Inspection(
        name=graph.name,
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        distinct_edges=g.num_slots,
        self_loops=int((source == target).sum()),
        symmetric=g.is_symmetric,
        fill=g.num_slots / graph.num_nodes**2 if graph.num_nodes else 0.0,
        degrees=degrees(g),
        windows=windows,
        used=used,
        skipped=skipped,
        dtype=dtype_name(dtype),
        times=[_times(g, windows, used, width, dtype, rounds if measure else 0) for width in widths],
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    )


def degrees(g: TCGraph) -> Degrees:
    """Summary of the number of edges, duplicates counted, that enter each node."""
    if g.num_rows == 0:
        return Degrees(0, 0, 0.0, 0, 0, 0)
    ordered = g.adjacency.rowptr.long().diff().sort()[0]
    last = g.num_rows - 1
    return Degrees(
        least=int(ordered[0]),
        median=int(ordered[last // 2]),
        mean=g.num_edges / g.num_rows,
        p99=int(ordered[last * 99 // 100]),
        most=int(ordered[-1]),
        empty=int((ordered == 0).sum()),
    )


def _reordered(g: TCGraph, reorders: Iterable[str]) -> tuple[dict[str, GraphStats], list[str], dict[str, str]]:
    """Statistics by row order, the orders that pay, and those that this machine cannot compute."""
    windows: dict[str, GraphStats] = {}
    used: list[str] = []
    skipped: dict[str, str] = {}
    for name in reorders:
        try:
            order = row_order(g.adjacency, g.num_cols, name)
        except ImportError as error:
            skipped[name] = str(error)
            continue
        blocks = bitblock.build(g.adjacency.rowptr, g.adjacency.col, g.num_cols, row_order=order)
        windows[name] = graph_stats(g.adjacency, g.num_cols, blocks)
        if order is not None and pays(g.adjacency, g.num_cols, order):
            used.append(name)
    return windows, used, skipped


def _times(
    g: TCGraph, windows: dict[str, GraphStats], used: list[str], width: int, dtype: torch.dtype, rounds: int
) -> WidthTimes:
    rates = rates_on(g.device, dtype)
    row_bytes = width * dtype.itemsize
    predicted = {"cuda": rates.predict_us(Work(rows=g.num_rows, entries=g.num_edges), row_bytes)}
    for name, stats in windows.items():
        work = Work(windows=-(-g.num_rows // 8), blocks=stats.blocks)
        predicted[f"tc/{name}"] = rates.predict_us(work, row_bytes)
    if not rounds:
        return WidthTimes(width, predicted, {})
    x = torch.ones(g.num_cols, width, dtype=dtype, device=g.device)
    forced = {"cpu": g}
    if g.device.type == "cuda":
        forced = {"cuda": replace(g, path="cuda", _derived={})}
        orders = [name for name in windows if name == "none" or name in used]
        forced |= {f"tc/{name}": replace(g, path="tc", reorder=name, _derived={}) for name in orders}
    calls = {path: (lambda graph=graph: spmm(graph, x)) for path, graph in forced.items()}
    return WidthTimes(width, predicted, kernel_medians_us(calls, g.device, rounds=rounds))
