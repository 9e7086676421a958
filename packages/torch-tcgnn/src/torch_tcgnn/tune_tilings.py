"""Find how the sum kernels should cut their work on this GPU: time tilings beside the launchers' rules, store winners.

Kernel time only, in turns, one ratio to the rule a round; a tiling has to win by 3 % on the graphs of its bucket.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import data
from .graph import TCGraph
from .kernels.cuda import bitblock_spmm, csr_spmm
from .kernels.cuda.padding import stored_width
from .row_plan import FEW_ENTRIES
from .stopwatch import kernel_samples_us
from .tiling import CHOICES, SHARED_BYTES, BlockTiling, Bucket, Kind, Tiling, bucket_of, store_tilings
from .tune import DTYPES, GRAPHS, WIDTHS, Track, tunable

LEAST_GAIN = 0.03
"""Share of the rule's time that a tiling must save to be stored."""


@dataclass(frozen=True)
class Found:
    """The best tiling of one bucket.

    Attributes:
        kind: ``"rows"`` (CUDA cores) or ``"blocks"`` (tensor cores).
        bucket: the graphs and widths that it holds for.
        tiling: the winner, or ``None`` where the launcher's rule stays.
        gain: share of the rule's time that it saves; 0 for the rule.
    """

    kind: Kind
    bucket: Bucket
    tiling: Tiling | None
    gain: float


def tune_tilings(
    device: torch.device | str | None = None,
    *,
    dtypes: Sequence[torch.dtype] = DTYPES,
    widths: Sequence[int] = WIDTHS,
    rounds: int = 7,
    track: Track = iter,
) -> list[Found]:
    """Measure this GPU, and store what was found for every later process.

    Args:
        device: a GPU of compute capability 8.0 or later; default: the current one.
        dtypes: feature types; of those of equal size, which move the same bytes, the first is timed for all.
        widths: feature widths to time.
        rounds: samples of each tiling.
        track: wraps the list of (graph, dtype) to measure, to show progress.

    Raises:
        RuntimeError: there is no such GPU.
        ValueError: a width below 1.
        OSError: the file of tilings cannot be written.
    """
    gpu = tunable(device)
    if not widths or min(widths) < 1:
        raise ValueError(f"widths must be at least 1, got {widths}")
    one_a_size = {dtype.itemsize: dtype for dtype in reversed(dtypes)}.values()
    ratios: dict[tuple[Kind, Bucket], list[dict[Tiling, float]]] = defaultdict(list)
    for name, dtype in track(list(itertools.product(GRAPHS, one_a_size))):
        for kind, bucket, relative in measure(GRAPHS[name](gpu), widths, dtype, rounds=rounds):
            ratios[kind, bucket].append(relative)
    found = [best(kind, bucket, several) for (kind, bucket), several in sorted(ratios.items())]
    table: dict[Kind, dict[Bucket, Tiling | None]] = {"rows": {}, "blocks": {}}
    for one in found:
        table[one.kind][one.bucket] = one.tiling
    store_tilings(torch.cuda.get_device_name(gpu), table)
    return found


def measure(
    graph: data.GraphData, widths: Sequence[int], dtype: torch.dtype, *, rounds: int
) -> Iterator[tuple[Kind, Bucket, dict[Tiling, float]]]:
    """Time an unweighted SpMM over ``graph`` under each tiling: medians of its times over the rule's of that round."""
    g = TCGraph.from_edge_index(graph.edge_index, graph.num_nodes, path="cuda", validate=False)
    for width in widths:
        x = torch.ones(g.num_cols, stored_width(width, dtype.itemsize), dtype=dtype, device=g.device)
        out = x.new_empty(g.num_rows, width)
        for kind, sizes, rule, configure, run in _kernels(g, x, out):
            timed = candidates(rule, dtype.itemsize, configure)
            calls = {tiling: (lambda config=config, run=run: run(config)) for tiling, config in timed.items()}
            samples = kernel_samples_us(calls, g.device, rounds=rounds)
            relative = {
                tiling: statistics.median(us / by_rule for us, by_rule in zip(taken, samples[rule], strict=True))
                for tiling, taken in samples.items()
            }
            yield kind, bucket_of(dtype.itemsize, x.shape[1], *sizes), relative


def _kernels(
    g: TCGraph, x: Tensor, out: Tensor
) -> Iterator[tuple[Kind, tuple[int, int], Tiling, Callable[[Any], Hashable], Callable[[Any], None]]]:
    """Each kernel: its kind, (rows, entries) or (items, blocks), the rule's tiling, and how to configure and run it."""
    width, summed = x.shape[1], out.shape[1]
    a, plan, blocks = g.adjacency, g.views.plan, g.views.blocks
    yield (
        "rows",
        (a.num_rows, a.num_edges),
        csr_spmm.rule(x.dtype, width, a.num_edges < FEW_ENTRIES, a.num_edges // a.num_rows, False),
        lambda tiling: csr_spmm.configure(
            x.dtype, width, 16, False, plan.short.dtype, a.col.dtype, False, tiling, summed
        ),
        lambda config: csr_spmm.gather_sum(plan, a.col, a.edge, x, None, out, config),
    )
    with_blocks = g.views.on(a, ("tc",), x.dtype)
    tail, wide = summed * x.element_size() % 16 != 0, a.rowptr.dtype == torch.int64
    yield (
        "blocks",
        (blocks.items.shape[0], blocks.num_blocks),
        bitblock_spmm.rule(x.dtype, width),
        lambda tiling: bitblock_spmm.configure(x.dtype, width, tail, False, "ieee", wide, False, tiling),
        lambda config: bitblock_spmm.multiply(with_blocks, x, None, "ieee", out, config),
    )


def candidates(rule: Tiling, element_bytes: int, configure: Callable[[Any], Hashable]) -> dict[Tiling, Hashable]:
    """Tilings to time, with their configurations: the rule first, then those that differ from it as compiled.

    All pairs of the first two fields, and the rule with one of the other fields changed.
    """
    first, second, *others = rule._fields
    pairs = itertools.product(CHOICES[first], CHOICES[second])
    tilings = [rule, *(rule._replace(**{first: a, second: b}) for a, b in pairs)]
    tilings += [rule._replace(**{field: value}) for field in others for value in CHOICES[field]]
    by_configuration: dict[Hashable, Tiling] = {}
    for tiling in tilings:
        if not isinstance(tiling, BlockTiling) or tiling.shared_bytes(element_bytes) <= SHARED_BYTES:
            by_configuration.setdefault(configure(tiling), tiling)
    return {tiling: config for config, tiling in by_configuration.items()}


def best(kind: Kind, bucket: Bucket, several: Sequence[dict[Tiling, float]]) -> Found:
    """The tiling with the least geometric mean of its ratios over the graphs of a bucket, if that is low enough.

    The rule stays as well where no tiling was timed on all of them: rules that differ know more than the bucket.

    Args:
        kind: of the kernel.
        bucket: of the graphs.
        several: one dictionary a graph: time over the rule's, by tiling.

    Example:
        >>> from torch_tcgnn.tiling import RowTiling
        >>> rule, other = RowTiling(256, 2, 4), RowTiling(128, 2, 4)
        >>> best("rows", bucket_of(4, 128, 10, 90), [{rule: 1.0, other: 0.9}, {rule: 1.0, other: 0.92}]).tiling
        RowTiling(tile_bytes=128, unroll=2, warps=4, load_bytes=16, batched=False)
        >>> best("rows", bucket_of(4, 128, 10, 90), [{rule: 1.0, other: 0.98}]).tiling is None
        True
    """
    timed_everywhere = set.intersection(*map(set, several))
    means = {t: statistics.geometric_mean(ratios[t] for ratios in several) for t in timed_everywhere}
    tiling = min(means, key=lambda t: (means[t], t), default=None)
    if tiling is None or means[tiling] > 1 - LEAST_GAIN:
        return Found(kind, bucket, None, 0.0)
    return Found(kind, bucket, tiling, 1 - means[tiling])
