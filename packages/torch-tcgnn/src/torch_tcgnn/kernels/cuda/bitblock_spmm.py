"""Launcher of ``bitblock_spmm.cu``: picks a configuration for the width and type, fills the arguments."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...adjacency import Adjacency
from . import nvrtc

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
    aligned: bool
    wide_index: bool = False

    @property
    def tile(self) -> int:
        """Features of one warp."""
        return self.units * (32 if self.type == 0 else 64)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one thread block: a ring for each warp."""
        rows = 8 if self.type == 0 else 16
        return WARPS * self.stages * rows * self.units * 128

    def macros(self) -> tuple[tuple[str, str], ...]:
        return (
            ("TYPE", str(self.type)),
            ("UNITS", str(self.units)),
            ("STAGES", str(self.stages)),
            ("WEIGHTED", str(int(self.weighted))),
            ("IEEE", str(int(self.ieee))),
            ("ALIGNED", str(int(self.aligned))),
            ("SlotIndex", "long long" if self.wide_index else "int"),
            ("WARPS", str(WARPS)),
        )


def supports(x: Tensor) -> bool:
    """Whether the kernel takes features of this type."""
    return x.dtype in TYPES


@functools.cache
def configure(
    dtype: torch.dtype, width: int, aligned: bool, weighted: bool, precision: str, wide_index: bool
) -> Config:
    """The configuration for rows of ``width`` features; ``aligned``: they start at multiples of 16 bytes."""
    units = 1 if width * dtype.itemsize <= 128 else 2
    stages = 4 if units == 1 else 2  # a deeper ring costs occupancy: measured on an H200
    ieee = precision == "ieee" and dtype == torch.float32
    return Config(TYPES[dtype], units, stages, weighted, ieee, aligned, wide_index)


@functools.cache
def _kernels(config: Config, device: int) -> tuple[Any, Any]:
    names = ("bitblock_spmm", "bitblock_combine")
    first, second = (nvrtc.kernel("bitblock_spmm.cu", config.macros(), name, device) for name in names)
    return first, second


def spmm(adjacency: Adjacency, x: Tensor, weight: Tensor | None, precision: str) -> Tensor:
    """``[M, F]`` from ``[K, F]`` and ``[E]`` weights, or ``[M, H, F]`` from ``[K, H, F]`` and ``[E, H]``.

    ``weight`` is in input edge order. Weights are rounded to the type of ``x``; accumulation is float32.
    """
    values = None if weight is None else adjacency.to_entries(weight)
    return multiply(adjacency, x, values, precision)


def multiply(
    adjacency: Adjacency, x: Tensor, entry_values: Tensor | None, precision: str, config: Config | None = None
) -> Tensor:
    """As :func:`spmm`, with values in entry order and, for tuning, a fixed configuration."""
    from cuda.core import launch

    blocks = adjacency.blocks
    assert blocks is not None
    heads = x.shape[1] if x.dim() == 3 else 1
    width = x.shape[-1]
    out = x.new_empty(adjacency.num_rows, *x.shape[1:])
    if out.numel() == 0:
        return out
    x = x.contiguous()
    values = blocks.slot_values(entry_values)
    if values is not None:
        values = values.to(x.dtype).contiguous()
    if config is None:
        aligned = x.data_ptr() % 16 == 0 and out.data_ptr() % 16 == 0 and width * x.element_size() % 16 == 0
        wide = adjacency.rowptr.dtype == torch.int64
        config = configure(x.dtype, width, aligned, values is not None, precision, wide)
    spmm_kernel, combine_kernel = _kernels(config, x.get_device())
    stream = nvrtc.current_stream(x.device)
    num_items = blocks.items.shape[0]
    num_splits = blocks.splits.shape[0]
    partial = x.new_empty(blocks.partial_window.shape[0] * 8 * heads * width, dtype=torch.float32)
    row_order = nvrtc.address(blocks.row_order)
    grid = (-(-num_items // WARPS), -(-width // config.tile), heads)
    launch(
        stream, nvrtc.launch_config(grid, 32 * WARPS, config.shared_bytes), spmm_kernel,
        blocks.items.data_ptr(), num_items, blocks.block_col.data_ptr(), blocks.block_mask.data_ptr(),
        blocks.block_slot.data_ptr(), 0 if values is None else values.data_ptr(), row_order, x.data_ptr(),
        heads * width, out.data_ptr(), heads * width, partial.data_ptr(), adjacency.num_rows,
        width, heads,
    )  # fmt: skip
    if num_splits:
        launch(
            stream, nvrtc.launch_config((num_splits, 8, 1), 128), combine_kernel,
            blocks.splits.data_ptr(), partial.data_ptr(), row_order, out.data_ptr(), adjacency.num_rows,
            heads * width,
        )  # fmt: skip
    return out
