"""Launcher of ``bitblock_spmm.cu``: picks a configuration for the width and type, fills the arguments."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...adjacency import Adjacency
from ...tiling import BlockTiling, tiling_on
from . import nvrtc
from .padding import starts_aligned

TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
WARPS = 4


@dataclass(frozen=True)
class Config:
    """One compilation of the kernel (see the macros in its source)."""

    type: int
    units: int
    stages: int
    weighted: bool
    ieee: bool
    tail: bool
    wide_index: bool = False
    wide_out: bool = False
    warps: int = WARPS

    @property
    def tile(self) -> int:
        """Features of one warp."""
        return self.units * (32 if self.type == 0 else 64)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one thread block: a ring for each warp."""
        rows = 8 if self.type == 0 else 16
        return self.warps * self.stages * rows * self.units * 128

    def macros(self) -> tuple[tuple[str, str], ...]:
        return (
            ("TYPE", str(self.type)),
            ("UNITS", str(self.units)),
            ("STAGES", str(self.stages)),
            ("WEIGHTED", str(int(self.weighted))),
            ("IEEE", str(int(self.ieee))),
            ("TAIL", str(int(self.tail))),
            ("SlotIndex", "long long" if self.wide_index else "int"),
            ("WIDE_OUT", str(int(self.wide_out))),
            ("WARPS", str(self.warps)),
        )


def rule(dtype: torch.dtype, width: int) -> BlockTiling:
    """The tiling where ``tune`` measured none."""
    row_bytes, most = width * dtype.itemsize, 4 if dtype.itemsize == 4 else 2
    units = next((n for n in (1, 2) if row_bytes <= 128 * n), most)
    stages = 3 if units == 1 and dtype.itemsize == 4 else 2  # a deeper ring costs occupancy: measured on an H200
    return BlockTiling(units, stages, WARPS)


@functools.cache
def configure(
    dtype: torch.dtype,
    width: int,
    tail: bool,
    weighted: bool,
    precision: str,
    wide_index: bool,
    wide_out: bool = False,
    tiling: BlockTiling | None = None,
) -> Config:
    """The configuration for rows of ``width`` features; ``tail``: results end inside 16 bytes of those.

    ``wide_out``: results of 16-bit features are float32. ``tiling``: default: the :func:`rule`.
    """
    units, stages, warps = rule(dtype, width) if tiling is None else tiling
    ieee = precision == "ieee" and dtype == torch.float32
    return Config(TYPES[dtype], units, stages, weighted, ieee, tail, wide_index, wide_out, warps)


@functools.cache
def _kernels(config: Config, device: int) -> tuple[Any, Any]:
    names = ("bitblock_spmm", "bitblock_combine")
    first, second = (nvrtc.kernel("bitblock_spmm.cu", config.macros(), name, device) for name in names)
    return first, second


def spmm(adjacency: Adjacency, x: Tensor, weight: Tensor | None, precision: str, out: Tensor) -> None:
    """Writes ``out``: ``[M, F]`` of ``[K, F]`` and ``[E]`` weights, or ``[M, H, F]`` of ``[K, H, F]`` and ``[E, H]``.

    ``weight`` is in input edge order. Weights, those of duplicate edges added up, are rounded to the type of ``x``;
    accumulation is float32. ``out`` is contiguous, of the type of ``x`` or float32. Rows of ``x`` start at multiples of
    16 bytes; it may have more features than ``out``: those are not summed (see ``padding``).
    """
    values = None if weight is None else adjacency.to_entries(weight)
    multiply(adjacency, x, values, precision, out)


def multiply(
    adjacency: Adjacency,
    x: Tensor,
    entry_values: Tensor | None,
    precision: str,
    out: Tensor,
    config: Config | None = None,
) -> None:
    """As :func:`spmm`, with values in entry order and, for tuning, a fixed configuration."""
    launch = nvrtc.launcher()
    blocks = adjacency.blocks
    assert blocks is not None
    heads = x.shape[1] if x.dim() == 3 else 1
    width, stored = out.shape[-1], x.shape[-1]
    if out.numel() == 0:
        return
    assert starts_aligned(x)
    values = blocks.slot_values(entry_values)
    if values is not None:
        values = values.to(x.dtype).contiguous()
    if config is None:
        tail = width * x.element_size() % 16 != 0
        types = adjacency.rowptr.dtype == torch.int64, out.dtype != x.dtype
        sizes = blocks.items.shape[0], blocks.num_blocks
        tiling = tiling_on(x.get_device(), "blocks", x.element_size(), stored, *sizes)
        config = configure(x.dtype, stored, tail, values is not None, precision, *types, tiling)
    spmm_kernel, combine_kernel = _kernels(config, x.get_device())
    stream = nvrtc.current_stream(x.device)
    num_items = blocks.items.shape[0]
    num_splits = blocks.splits.shape[0]
    num_partial = blocks.partial_window.shape[0] * 8 * heads * width
    partial = x.new_empty(num_partial, dtype=torch.float32) if num_partial else blocks.partial_window
    row_order = nvrtc.address(blocks.row_order)
    grid = (-(-num_items // config.warps), -(-width // config.tile), heads)
    launch(
        stream, nvrtc.launch_config(grid, 32 * config.warps, config.shared_bytes), spmm_kernel,
        blocks.items.data_ptr(), num_items, blocks.block_col.data_ptr(), blocks.block_mask.data_ptr(),
        blocks.block_slot.data_ptr(), 0 if values is None else values.data_ptr(), row_order, x.data_ptr(),
        stored, out.data_ptr(), partial.data_ptr(), adjacency.num_rows, width, heads,
    )  # fmt: skip
    if num_splits:
        launch(
            stream, nvrtc.launch_config((num_splits, 8, 1), 128), combine_kernel,
            blocks.splits.data_ptr(), partial.data_ptr(), row_order, out.data_ptr(), adjacency.num_rows,
            heads * width,
        )  # fmt: skip
