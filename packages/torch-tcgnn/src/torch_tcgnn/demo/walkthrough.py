"""The demo from start to end: translate real graphs, check, time and train on them.

Graphs: scikit-learn's digits joined to their nearest neighbours, the first molecules that come with RDKit, and Cora
where a data folder is given.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import data as graphs
from .. import reference
from ..data import GraphData
from ..functional import spmm
from ..graph import TCGraph
from ..stopwatch import medians_us

if TYPE_CHECKING:
    from .training import Run

Progress = Callable[[float, str], None]
DIM = 64
EPOCHS = 100
MOLECULES = 750
CSR, GATHER = "torch.sparse CSR", "gather + index_add"


def section(progress: Progress, data: Path | None, seed: int) -> dict[str, Any]:
    """Show the package: what translation does to a graph, that the results are right, and what it saves.

    Args:
        progress: called with a fraction and a message.
        data: folder of real data sets, or ``None``.
        seed: of every random choice.

    Raises:
        ImportError: lightning, torchmetrics, scikit-learn, RDKit or matplotlib is missing; the message names the pip
            command.

    Example:
        >>> from torch_tcgnn.demo import section
        >>> result = section(lambda fraction, message: None, None, 0)  # doctest: +SKIP
    """
    progress(0.0, "loading libraries")
    from . import pictures, training  # here, so that a missing extra is named when the demo runs

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the graphs are small, and a busy machine then disturbs the times less
    try:
        return _section(progress, data, seed, pictures, training)
    finally:
        torch.set_num_threads(threads)


def _section(progress: Progress, data: Path | None, seed: int, pictures: Any, training: Any) -> dict[str, Any]:
    notes: list[str] = []
    loaded = _load(data, seed, notes)
    rows, ratios = [], {}
    for i, graph in enumerate(loaded):
        progress(0.1 + 0.3 * i / len(loaded), f"{graph.name}: translating, checking, timing")
        translated, row = _translate(graph)
        rows += [row, _check(graph, translated, seed)]
        timed, ratios[graph.name] = _race(graph, translated, seed)
        rows += timed

    trained, variants, runs = loaded[-1] if loaded[-1].y is not None else loaded[0], training.variants(), []
    for i, variant in enumerate(variants):
        progress(0.4 + 0.45 * i / len(variants), f"{trained.name}: training a GCN, {variant.name}")
        runs.append(training.train(trained, variant, epochs=EPOCHS, seed=seed))
    progress(0.85, f"{trained.name}: timing a training step")
    step_ms = training.step_ms(trained, variants, seed=seed)
    rows += _training_rows(trained, runs, step_ms)

    progress(0.95, "drawing")
    first = TCGraph.from_edge_index(loaded[0].edge_index, loaded[0].num_nodes)
    figures = [
        pictures.window(loaded[0].name, first),
        pictures.ratios(ratios),
        pictures.training(trained.name, runs, step_ms),
    ]
    progress(1.0, "done")
    ours, plain = runs[0], runs[1]
    return {
        "title": "Sparse graph aggregation, translated once",
        "summary": (
            f"A GCN on {trained.name} reaches {ours.accuracy:.1f} % test accuracy with our layers and "
            f"{plain.accuracy:.1f} % with gather and index_add; a training step takes {step_ms[ours.name]:.1f} ms "
            f"instead of {step_ms[plain.name]:.1f} ms."
        ),
        "rows": rows,
        "figures": figures,
        "notes": [
            f"Float32, one CPU thread, features of width {DIM}, medians of samples taken in turns. Ratios are the "
            "peer's time over ours: above one, ours is faster.",
            "A CPU has no tensor cores: there, ours sums over compressed rows and keeps the transpose that the "
            "backward pass needs. The blocks are what a GPU works on.",
            f"Training: the same start weights and dropout draws for all models, {EPOCHS} epochs of full-batch Adam by "
            "Lightning; test accuracy at the best validation accuracy. A step is forward, backward and update.",
            *notes,
        ],
    }


def _load(data: Path | None, seed: int, notes: list[str]) -> list[GraphData]:
    loaded = [graphs.digits(seed=seed), graphs.nci(molecules=MOLECULES)]
    notes.append(
        "digits: scikit-learn's handwritten digits, 8 nearest neighbours. nci: the first "
        f"{MOLECULES} molecules of the NCI's open database that come with RDKit, one batch of atoms and bonds."
    )
    if data is None:
        return loaded
    try:
        cora = graphs.planetoid("cora", data)
    except FileNotFoundError as error:
        notes.append(f"Cora was left out: {error}")
        return loaded
    notes.append("cora: citation graph of Yang, Cohen and Salakhutdinov (2016), features scaled to row sums of 1.")
    x = torch.as_tensor(cora.x)
    return [*loaded, replace(cora, x=x / x.sum(1, keepdim=True).clamp(min=1))]


def _translate(graph: GraphData) -> tuple[TCGraph, dict[str, Any]]:
    began = time.perf_counter()
    translated = TCGraph.from_edge_index(graph.edge_index, graph.num_nodes)
    stats = translated.stats
    took = 1e3 * (time.perf_counter() - began)
    what = (
        f"{stats.nnz:,} edges into {stats.blocks:,} blocks of 8 × 8, {100 * stats.density:.0f} % full; "
        f"{stats.reuse:.2f} edges for each gathered row"
    )
    return translated, _row("translate", graph, what, took)


def _check(graph: GraphData, translated: TCGraph, seed: int) -> dict[str, Any]:
    """Against the dense matrix in float64; rows in parts, for the matrix may be large."""
    x = torch.randn(graph.num_nodes, DIM, generator=torch.Generator().manual_seed(seed))
    got, worst = spmm(translated, x), 0.0
    source, target = graph.edge_index
    for first in range(0, graph.num_nodes, 1024):
        last = min(first + 1024, graph.num_nodes)
        inside = (target >= first) & (target < last)
        dense = torch.zeros(last - first, graph.num_nodes, dtype=torch.float64)
        dense.index_put_((target[inside] - first, source[inside]), torch.ones((), dtype=torch.float64), accumulate=True)
        scale = (dense @ x.double().abs()).clamp(min=1e-30)
        worst = max(worst, float(((got[first:last] - dense @ x.double()).abs() / scale).max()))
    if worst > 1e-5:
        raise ArithmeticError(f"spmm on {graph.name} differs from the dense product by {worst:.1e}")
    return _row("check", graph, f"spmm against the dense matrix in float64: largest relative error {worst:.0e}")


def _race(graph: GraphData, translated: TCGraph, seed: int) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Aggregation with its gradient: ours, torch's CSR matrix, and gather with index_add."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(graph.num_nodes, DIM, generator=random).requires_grad_()
    grad = torch.randn(graph.num_nodes, DIM, generator=random)
    source, target = graph.edge_index
    rowptr, col = graph.csr()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse", UserWarning)
        size = (graph.num_nodes, graph.num_nodes)
        matrix = torch.sparse_csr_tensor(rowptr, col.long(), torch.ones(graph.num_edges), size=size)
    ways: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: spmm(translated, x),
        CSR: lambda: matrix @ x,
        GATHER: lambda: reference.spmm(target, source, x, None, graph.num_nodes),
    }

    def step(way: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return lambda: torch.autograd.grad(way(), x, grad)[0]

    gradients = {name: step(way)() for name, way in ways.items()}
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, gradients["ours"], rtol=1e-4, atol=1e-4, msg=f"{name} on {graph.name}")
    took = {name: us / 1e3 for name, us in medians_us({n: step(w) for n, w in ways.items()}, x.device).items()}
    ratios = {name: ms / took["ours"] for name, ms in took.items() if name != "ours"}
    rows = [_row("time", graph, f"sum and its gradient: {name}", ms, ratios.get(name)) for name, ms in took.items()]
    return rows, ratios


def _training_rows(graph: GraphData, runs: list[Run], step_ms: dict[str, float]) -> list[dict[str, Any]]:
    ours = runs[0].name
    rows = []
    for run in runs:
        ratio = None if run.name == ours else step_ms[run.name] / step_ms[ours]
        rows.append(_row("train", graph, f"GCN, a step: {run.name}", step_ms[run.name], ratio, round(run.accuracy, 1)))
    return rows


def _row(
    step: str,
    graph: GraphData,
    what: str,
    ms: float | None = None,
    ratio: float | None = None,
    accuracy: float | None = None,
) -> dict[str, Any]:
    return {
        "step": step, "graph": graph.name, "what": what, "ms": _rounded(ms), "ratio": _rounded(ratio),
        "accuracy %": accuracy,
    }  # fmt: skip


def _rounded(value: float | None) -> float | None:
    """Three digits: what the clock can tell."""
    return None if value is None else float(f"{value:.3g}")
