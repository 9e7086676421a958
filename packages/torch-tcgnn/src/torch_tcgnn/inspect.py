"""What a graph looks like to this package: sizes, degrees, tiles under each row order, predicted and measured times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from .cost import dtype_name, rates_on
from .data import GraphData
from .functional import spmm
from .graph import TCGraph
from .reorder import REORDERS
from .stats import GraphStats
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
        measured_us: microseconds of the kernels; empty where nothing was measured.
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
        windows: block statistics by row order.
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
    graphs, skipped = _reordered(g, reorders)
    windows = {name: ordered.stats for name, ordered in graphs.items()}
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
        skipped=skipped,
        dtype=dtype_name(dtype),
        times=[_times(g, graphs, width, dtype, rounds if measure else 0) for width in widths],
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


def _reordered(g: TCGraph, reorders: Iterable[str]) -> tuple[dict[str, TCGraph], dict[str, str]]:
    """Graphs by row order with their blocks built, and the orders that this machine cannot compute."""
    graphs: dict[str, TCGraph] = {}
    skipped: dict[str, str] = {}
    for name in reorders:
        ordered = g if name == "none" else replace(g, reorder=name, _derived={})
        try:
            _ = ordered.blocks
        except ImportError as error:
            skipped[name] = str(error)
        else:
            graphs[name] = ordered
    return graphs, skipped


def _times(g: TCGraph, graphs: dict[str, TCGraph], width: int, dtype: torch.dtype, rounds: int) -> WidthTimes:
    rates = rates_on(g.device, dtype)
    row_bytes = width * dtype.itemsize
    predicted = {"cuda": rates.rows.predict_us(g.num_rows, g.num_edges, row_bytes)}
    for name, ordered in graphs.items():
        blocks = ordered.blocks.num_blocks
        predicted[f"tc/{name}"] = rates.predict_us(g.num_rows, g.num_edges, blocks, row_bytes)["tc"]
    if not rounds:
        return WidthTimes(width, predicted, {})
    x = torch.ones(g.num_cols, width, dtype=dtype, device=g.device)
    forced = {"cpu": g}
    if g.device.type == "cuda":
        forced = {"cuda": replace(g, path="cuda", _derived={})}
        forced |= {f"tc/{name}": _by_blocks(ordered) for name, ordered in graphs.items()}
    calls = {path: (lambda graph=graph: spmm(graph, x)) for path, graph in forced.items()}
    return WidthTimes(width, predicted, kernel_medians_us(calls, g.device, rounds=rounds))


def _by_blocks(g: TCGraph) -> TCGraph:
    return replace(g, path="tc", _derived={"blocks": g.blocks})
