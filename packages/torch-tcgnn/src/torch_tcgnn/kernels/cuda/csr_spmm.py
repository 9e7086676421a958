"""Launcher of ``csr_spmm.cu``: picks a configuration for the width and type, fills the arguments."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...adjacency import Adjacency
from ...row_plan import RowPlan
from . import nvrtc

TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}
INDEX = {torch.int32: "int", torch.int64: "long long"}
WARPS = 4
UNROLL = 2


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

    @property
    def tile(self) -> int:
        """Features of one warp."""
        return self.lanes * self.vec

    def macros(self) -> tuple[tuple[str, str], ...]:
        return (
            ("TYPE", str(self.type)),
            ("VEC", str(self.vec)),
            ("LANES", str(self.lanes)),
            ("UNROLL", str(self.unroll)),
            ("WEIGHTED", str(int(self.weighted))),
            ("Index", self.index),
            ("Column", self.column),
            ("WARPS", str(WARPS)),
        )


@functools.cache
def configure(
    dtype: torch.dtype, width: int, alignment: int, weighted: bool, index: torch.dtype, column: torch.dtype
) -> Config:
    """The configuration for rows of ``width`` features that start at multiples of ``alignment`` bytes."""
    vec = max(v for v in (1, 2, 4, 8) if v * dtype.itemsize <= alignment and width % v == 0)
    lane_bytes = vec * dtype.itemsize
    tile_bytes = 128 if width * dtype.itemsize >= 512 and dtype.itemsize > 2 else 256  # a narrow slab stays in L2
    widest = min(32, tile_bytes // lane_bytes)
    lanes = 4
    while lanes < widest and lanes * vec < width:
        lanes *= 2
    return Config(TYPES[dtype], vec, lanes, UNROLL, weighted, INDEX[index], INDEX[column])


@functools.cache
def _kernels(config: Config, device: int) -> tuple[Any, Any]:
    first, second = (nvrtc.kernel("csr_spmm.cu", config.macros(), name, device) for name in ("csr_spmm", "csr_combine"))
    return first, second


def spmm(adjacency: Adjacency, x: Tensor, weight: Tensor | None) -> Tensor:
    """``[M, F]`` from ``[K, F]`` and ``[E]`` weights, or ``[M, H, F]`` from ``[K, H, F]`` and ``[E, H]``.

    ``weight`` is in input edge order. Accumulation is float32 (float64 for float64).
    """
    assert adjacency.plan is not None
    return gather_sum(adjacency.plan, adjacency.num_rows, adjacency.col, adjacency.edge, x, weight)


def segment_sum(adjacency: Adjacency, edge_values: Tensor) -> Tensor:
    """``[M, ...]``: sum of ``[E, ...]`` values in input edge order over the edges of each row."""
    assert adjacency.plan is not None
    flat = edge_values.reshape(adjacency.num_edges, -1)
    out = gather_sum(adjacency.plan, adjacency.num_rows, adjacency.edge, adjacency.edge, flat, None)
    return out.view(adjacency.num_rows, *edge_values.shape[1:])


def gather_sum(
    plan: RowPlan,
    num_rows: int,
    col: Tensor,
    edge: Tensor,
    table: Tensor,
    weight: Tensor | None,
    config: Config | None = None,
) -> Tensor:
    """``out[i] = Σ_{k in row i} weight[edge[k]] · table[col[k]]``; an empty ``col`` or ``edge`` is the identity.

    ``config`` fixes the configuration, for tuning.
    """
    from cuda.core import launch

    width = table.shape[-1]
    heads = table.shape[1] if table.dim() == 3 else 1
    out = table.new_empty(num_rows, *table.shape[1:])
    if out.numel() == 0:
        return out
    table = table.contiguous()
    if weight is not None:
        weight = weight.to(table.dtype).contiguous()
    if config is None:
        alignment = 16 if table.data_ptr() % 16 == 0 and out.data_ptr() % 16 == 0 else table.element_size()
        config = configure(table.dtype, width, alignment, weight is not None, plan.short.dtype, col.dtype)
    spmm_kernel, combine_kernel = _kernels(config, table.get_device())
    stream = nvrtc.current_stream(table.device)
    num_pieces, num_wide, num_short = plan.pieces.shape[0], plan.wide.shape[0], plan.short.shape[0]
    sums = torch.float64 if table.dtype == torch.float64 else torch.float32
    partial = table.new_empty(num_pieces * heads * width, dtype=sums)
    warps = num_pieces + num_wide - (-num_short // (32 // config.lanes))
    grid = (-(-warps // WARPS), -(-width // config.tile), heads)
    launch(
        stream, nvrtc.launch_config(grid, 32 * WARPS), spmm_kernel,
        plan.pieces.data_ptr(), num_pieces, plan.wide.data_ptr(), num_wide, plan.short.data_ptr(), num_short,
        nvrtc.address(col), nvrtc.address(edge), 0 if weight is None else weight.data_ptr(), table.data_ptr(),
        heads * width, out.data_ptr(), heads * width, partial.data_ptr(), width, heads,
    )  # fmt: skip
    if num_pieces:
        launch(
            stream, nvrtc.launch_config((plan.cut_rows.shape[0], -(-heads * width // 128), 1), 128), combine_kernel,
            plan.cut_rows.data_ptr(), partial.data_ptr(), out.data_ptr(), heads * width,
        )  # fmt: skip
    return out
