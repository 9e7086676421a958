"""Fit the cost model of ``cost`` to this GPU: time both kernels on generated graphs, solve for the coefficients, store.

Relative least squares under the condition that no coefficient is negative (a path never gets faster by more work).
Kernel time only: calls are replayed from a CUDA graph, because launching costs both paths the same.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from . import data
from .cost import Rate, Rates, paths_on, store_rates
from .functional import spmm
from .graph import TCGraph
from .stopwatch import kernel_medians_us

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDTHS = (16, 32, 64, 128, 256)
Track = Callable[[Sequence[tuple[str, torch.dtype]]], Iterable[tuple[str, torch.dtype]]]
GRAPHS: dict[str, Callable[[torch.device], data.GraphData]] = {
    "small hubs": lambda device: data.power_law(3_000, 30_000, device=device),
    "small communities": lambda device: data.sbm([32] * 100, 0.4, 1e-3, device=device),
    "hubs": lambda device: data.power_law(50_000, 1_600_000, max_degree=1_500, device=device),
    "many hubs": lambda device: data.power_law(300_000, 1_800_000, device=device),
    "heavy": lambda device: data.power_law(100_000, 6_000_000, device=device),
    "communities of 64": lambda device: data.sbm([64] * 600, 0.3, 5e-5, device=device),
    "communities of 256": lambda device: data.sbm([256] * 200, 0.1, 1e-5, device=device),
    "cliques": lambda device: data.sbm([32] * 4_000, 0.8, 1e-6, device=device),
    "molecules": lambda device: data.molecule_batch(20_000, 40, 3.7, device=device),
    "trees": lambda device: data.molecule_batch(20_000, 45, 2.1, device=device),
    "streets": lambda device: data.grid_road(1_000_000, 2_800_000, device=device),
    "skewed": lambda device: data.rmat(200_000, 3_000_000, device=device),
}
"""Graphs that differ in what the model reads: rows, entries, and entries a block."""


@dataclass(frozen=True)
class Sample:
    """One measured call.

    Attributes:
        rows: rows (CUDA cores) or windows of 8 rows (tensor cores).
        entries: entries, or blocks of 8 columns.
        row_bytes: bytes of one feature row.
        us: microseconds.
    """

    rows: int
    entries: int
    row_bytes: int
    us: float


@dataclass(frozen=True)
class Fit:
    """Fitted rates and how well they describe the samples.

    Attributes:
        rates: the coefficients.
        blocks_error: median relative error of the tensor-core prediction.
        rows_error: median relative error of the CUDA-core prediction.
        right: share of the samples in which the faster path is predicted.
        regret: mean time of the predicted path over that of the faster one, minus 1.
    """

    rates: Rates
    blocks_error: float
    rows_error: float
    right: float
    regret: float


def tune(
    device: torch.device | str | None = None,
    *,
    dtypes: Sequence[torch.dtype] = DTYPES,
    widths: Sequence[int] = WIDTHS,
    rounds: int = 10,
    track: Track = iter,
) -> dict[torch.dtype, Fit]:
    """Measure this GPU, fit, and store the rates for every later process.

    Args:
        device: a GPU of compute capability 8.0 or later; default: the current one.
        dtypes: feature types to fit.
        widths: feature widths to time.
        rounds: samples of each call.
        track: wraps the list of (graph, dtype) to measure, to show progress.

    Raises:
        RuntimeError: there is no such GPU.
        ValueError: a width below 1.
        OSError: the file of rates cannot be written.
    """
    gpu = tunable(device)
    if not widths or min(widths) < 1:
        raise ValueError(f"widths must be at least 1, got {widths}")
    samples: dict[torch.dtype, tuple[list[Sample], list[Sample]]] = {dtype: ([], []) for dtype in dtypes}
    for name, dtype in track(list(itertools.product(GRAPHS, dtypes))):
        by_blocks, by_rows = samples[dtype]
        for tc, cuda in measure(GRAPHS[name](gpu), widths, dtype, rounds=rounds):
            by_blocks.append(tc)
            by_rows.append(cuda)
    fits = {dtype: judge(*pair) for dtype, pair in samples.items()}
    store_rates(torch.cuda.get_device_name(gpu), {dtype: fit.rates for dtype, fit in fits.items()})
    return fits


def tunable(device: torch.device | str | None = None) -> torch.device:
    """The GPU to measure.

    Raises:
        RuntimeError: ``device`` is no GPU that has both paths.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("tune times kernels on a GPU, and PyTorch sees none here; a CPU has nothing to tune")
    device = torch.device("cuda" if device is None else device)
    if device.type != "cuda":
        raise RuntimeError(f"tune times kernels on a GPU, got device {device}; a CPU has nothing to tune")
    paths_on("tc", device)
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


def measure(
    graph: data.GraphData, widths: Sequence[int], dtype: torch.dtype, *, rounds: int = 10
) -> Iterable[tuple[Sample, Sample]]:
    """Time an unweighted SpMM by tensor cores and by CUDA cores at each width, on the device of ``graph``."""
    blocks = TCGraph.from_edge_index(graph.edge_index, graph.num_nodes, path="tc", validate=False)
    rows = replace(blocks, path="cuda", _derived={})
    for width in widths:
        x = torch.ones(graph.num_nodes, width, dtype=dtype, device=blocks.device)
        calls = {"tc": lambda x=x: spmm(blocks, x), "cuda": lambda x=x: spmm(rows, x)}
        us = kernel_medians_us(calls, blocks.device, rounds=rounds)
        row_bytes = width * dtype.itemsize
        yield (
            Sample(-(-graph.num_nodes // 8), blocks.blocks.num_blocks, row_bytes, us["tc"]),
            Sample(graph.num_nodes, graph.num_edges, row_bytes, us["cuda"]),
        )


def fit(samples: Sequence[Sample]) -> Rate:
    """The coefficients, none negative, with the least squared relative error.

    Four unknowns have fifteen sets that may be positive; the least-squares solution on each set is found, and the best
    of those without a negative coefficient is the constrained optimum.

    Raises:
        ValueError: fewer than four samples, or a time that is not positive.

    Example:
        >>> true = Rate(fixed=5.0, per_row=300.0, per_entry=0.0, per_byte=0.125)
        >>> sizes = [(10_000, 90_000, 64), (20_000, 400_000, 256), (5_000, 10_000, 512), (90_000, 200_000, 128)]
        >>> round(fit([Sample(*size, true.predict_us(*size)) for size in sizes]).per_byte, 6)
        0.125
    """
    if len(samples) < 4:
        raise ValueError(f"samples: four coefficients need at least four samples, got {len(samples)}")
    wrong = [s.us for s in samples if not 0 < s.us < math.inf]
    if wrong:
        raise ValueError(f"samples: times must be positive and finite, got {wrong[0]}")
    us = torch.tensor([s.us for s in samples], dtype=torch.float64)
    terms = [[1.0, s.rows / 1e6, s.entries / 1e6, s.entries * s.row_bytes / 1e6] for s in samples]
    relative = torch.tensor(terms, dtype=torch.float64) / us[:, None]
    scale = relative.norm(dim=0).clamp(min=torch.finfo(torch.float64).tiny)
    best, least = torch.zeros(4, dtype=torch.float64), math.inf
    for kept in itertools.chain.from_iterable(itertools.combinations(range(4), n) for n in range(1, 5)):
        columns = relative[:, list(kept)] / scale[list(kept)]
        solution = torch.linalg.lstsq(columns, torch.ones(len(samples), 1, dtype=torch.float64)).solution
        error = float((columns @ solution - 1).square().sum())
        if bool((solution >= 0).all()) and error < least:
            least = error
            best = torch.zeros(4, dtype=torch.float64)
            best[list(kept)] = solution[:, 0] / scale[list(kept)]
    return Rate(*best.tolist())


def judge(by_blocks: Sequence[Sample], by_rows: Sequence[Sample]) -> Fit:
    """Fit both paths to samples of the same calls, and say how often the model picks the faster one."""
    rates = Rates(blocks=fit(by_blocks), rows=fit(by_rows))
    right, ratios = 0, []
    for tc, cuda in zip(by_blocks, by_rows, strict=True):
        prefers_blocks = _predicted(rates.blocks, tc) < _predicted(rates.rows, cuda)
        chosen, fastest = (tc.us if prefers_blocks else cuda.us), min(tc.us, cuda.us)
        right += chosen == fastest
        ratios.append(chosen / fastest)
    return Fit(
        rates=rates,
        blocks_error=_median_error(rates.blocks, by_blocks),
        rows_error=_median_error(rates.rows, by_rows),
        right=right / len(ratios),
        regret=statistics.mean(ratios) - 1,
    )


def _median_error(rate: Rate, samples: Sequence[Sample]) -> float:
    return statistics.median(abs(_predicted(rate, s) / s.us - 1) for s in samples)


def _predicted(rate: Rate, sample: Sample) -> float:
    return rate.predict_us(sample.rows, sample.entries, sample.row_bytes)
