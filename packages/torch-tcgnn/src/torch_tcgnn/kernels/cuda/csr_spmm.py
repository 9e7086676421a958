"""Launcher of ``csr_spmm.cu``: picks a configuration for the width and type, fills the arguments."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...adjacency import Adjacency
from ...row_plan import FEW_ENTRIES, RowPlan
from ...tiling import RowTiling, tiling_on
from . import nvrtc

TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}
INDEX = {torch.int32: "int", torch.int64: "long long"}
WARPS = 4
PLAIN = RowTiling(tile_bytes=256, unroll=2, warps=WARPS)
"""For short rows without weights."""
LEAST_LANES = 4
"""Lanes of a row, at least."""
FEW_LANES = 8
"""The same in a graph of few entries, which would leave a large GPU short of warps."""


@dataclass(frozen=True)
class Config:
    """One compilation of the kernel (see the macros in its source)."""

    type: int
    vec: int
    lanes: int
    unroll: int
    weighted: bool
    index: str
    column: str
    wide_out: bool = False
    warps: int = WARPS
    batched: bool = False
    tail: bool = False

    @property
    def tile(self) -> int:
        """Features of one warp."""
        return self.lanes * self.vec

    def macros(self) -> tuple[tuple[str, str], ...]:
        return (
            ("TYPE", str(self.type)),
            ("VEC", str(self.vec)),
            ("TAIL", str(int(self.tail))),
            ("LANES", str(self.lanes)),
            ("UNROLL", str(self.unroll)),
            ("BATCHED", str(int(self.batched))),
            ("WEIGHTED", str(int(self.weighted))),
            ("Index", self.index),
            ("Column", self.column),
            ("WIDE_OUT", str(int(self.wide_out))),
            ("WARPS", str(self.warps)),
        )


@functools.cache
def rule(dtype: torch.dtype, width: int, few: bool, mean: int, weighted: bool) -> RowTiling:
    """The tiling where ``tune`` measured none (found on an H200).

    Args:
        dtype: of the features.
        width: features of a row.
        few: fewer than :data:`FEW_ENTRIES` entries.
        mean: entries of a row, on average.
        weighted: whether there are weights to fetch.
    """
    row_bytes, half = width * dtype.itemsize, dtype.itemsize == 2
    lanes = FEW_LANES if few else LEAST_LANES
    load_bytes = next((n for n in (16, 8) if row_bytes >= lanes * n), 4 if few else 8)
    long = mean >= (16 if few else 32)  # lanes fetch ids for each other
    if not long and not weighted:
        tile_bytes = 512 if half and row_bytes >= 512 else PLAIN.tile_bytes
        unroll = 1 if half and row_bytes >= 64 and mean < 8 and not few else PLAIN.unroll
        return RowTiling(tile_bytes, unroll, WARPS, load_bytes)
    whole_warp = row_bytes >= 512 and not half
    return RowTiling(512, 2 if whole_warp and long and weighted else 4, WARPS, load_bytes, batched=True)


@functools.cache
def configure(
    dtype: torch.dtype,
    width: int,
    alignment: int,
    weighted: bool,
    index: torch.dtype,
    column: torch.dtype,
    wide_out: bool = False,
    tiling: RowTiling = PLAIN,
    summed: int | None = None,
) -> Config:
    """The configuration for rows of ``width`` features that start at multiples of ``alignment`` bytes.

    ``wide_out``: results of 16-bit features are float32. ``summed``: features of a result; default: all of ``width``.
    """
    tile_bytes, unroll, warps, load_bytes, batched = tiling
    most = max(min(alignment, load_bytes) // dtype.itemsize, 1)
    vec = max(v for v in (1, 2, 4, 8) if v <= most and width % v == 0)
    widest = min(32, tile_bytes // (vec * dtype.itemsize))
    lanes = LEAST_LANES
    while lanes < widest and lanes * vec < width:
        lanes *= 2
    types = INDEX[index], INDEX[column], wide_out
    tail = summed is not None and summed % vec != 0
    return Config(TYPES[dtype], vec, lanes, unroll, weighted, *types, warps, batched, tail)


@functools.cache
def _kernels(config: Config, device: int) -> tuple[Any, Any]:
    first, second = (nvrtc.kernel("csr_spmm.cu", config.macros(), name, device) for name in ("csr_spmm", "csr_combine"))
    return first, second


def spmm(adjacency: Adjacency, x: Tensor, weight: Tensor | None, out: Tensor, plan: RowPlan | None = None) -> None:
    """Writes ``out``: ``[M, F]`` of ``[K, F]`` and ``[E]`` weights, or ``[M, H, F]`` of ``[K, H, F]`` and ``[E, H]``.

    ``weight`` is in input edge order. Accumulation is float32 (float64 for float64). ``out`` is contiguous, of the type
    of ``x`` or, for 16-bit features, float32. Only the rows of ``plan`` are written; default: all. ``x`` may have more
    features than ``out``: those are not summed (see ``padding``).
    """
    plan = adjacency.plan if plan is None else plan
    assert plan is not None
    gather_sum(plan, adjacency.col, adjacency.edge, x, weight, out)


def segment_sum(adjacency: Adjacency, edge_values: Tensor, out: Tensor) -> None:
    """Writes ``out`` ``[M, ...]``: sum of ``[E, ...]`` values in input edge order over the edges of each row."""
    assert adjacency.plan is not None
    flat = edge_values.reshape(adjacency.num_edges, -1)
    gather_sum(adjacency.plan, adjacency.edge, adjacency.edge, flat, None, out.view(adjacency.num_rows, -1))


def gather_sum(
    plan: RowPlan,
    col: Tensor,
    edge: Tensor,
    table: Tensor,
    weight: Tensor | None,
    out: Tensor,
    config: Config | None = None,
) -> None:
    """``out[i] = Σ_{k in row i} weight[edge[k]] · table[col[k]]`` for the rows of ``plan``; no other row is written.

    An empty ``col`` or ``edge`` is the identity. Rows of ``table`` may be longer than those of ``out``: what follows is
    not summed. ``config`` fixes the configuration, for tuning.
    """
    launch = nvrtc.launcher()
    width, stored = out.shape[-1], table.shape[-1]
    heads = table.shape[1] if table.dim() == 3 else 1
    if out.numel() == 0:
        return
    table = table.contiguous()
    if weight is not None:
        weight = weight.to(table.dtype).contiguous()
    if config is None:
        alignment = 16 if table.data_ptr() % 16 == 0 and out.data_ptr() % 16 == 0 else table.element_size()
        types = plan.short.dtype, col.dtype, out.dtype != table.dtype
        sizes = out.shape[0], col.shape[0] or table.shape[0]
        tiling = tiling_on(table.get_device(), "rows", table.element_size(), stored, *sizes) if weight is None else None
        few, mean = sizes[1] < FEW_ENTRIES, sizes[1] // sizes[0]
        tiling = tiling or rule(table.dtype, stored, few, mean, weight is not None)
        config = configure(table.dtype, stored, alignment, weight is not None, *types, tiling, width)
    spmm_kernel, combine_kernel = _kernels(config, table.get_device())
    stream = nvrtc.current_stream(table.device)
    num_pieces, num_wide, num_short = plan.pieces.shape[0], plan.wide.shape[0], plan.short.shape[0]
    sums = torch.float64 if table.dtype == torch.float64 else torch.float32
    partial = table.new_empty(num_pieces * heads * width, dtype=sums) if num_pieces else plan.pieces
    warps = num_pieces + num_wide - (-num_short // (32 // config.lanes))
    grid = (-(-warps // config.warps), -(-width // config.tile), heads)
    launch(
        stream, nvrtc.launch_config(grid, 32 * config.warps), spmm_kernel,
        plan.pieces.data_ptr(), num_pieces, plan.wide.data_ptr(), num_wide, plan.short.data_ptr(), num_short,
        nvrtc.address(col), nvrtc.address(edge), 0 if weight is None else weight.data_ptr(), table.data_ptr(),
        heads * stored, stored, out.data_ptr(), heads * width, partial.data_ptr(), width, heads,
    )  # fmt: skip
    if num_pieces:
        launch(
            stream, nvrtc.launch_config((plan.cut_rows.shape[0], -(-heads * width // 128), 1), 128), combine_kernel,
            plan.cut_rows.data_ptr(), partial.data_ptr(), out.data_ptr(), heads * width,
        )  # fmt: skip
