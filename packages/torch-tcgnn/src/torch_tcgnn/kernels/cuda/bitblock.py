"""Launcher of ``bitblock_spmm.cu``: picks a configuration for the width and type, fills the arguments."""

from __future__ import annotations

import functools
from dataclasses import dataclass

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
    vec: int
    units: int
    step: int
    weighted: bool
    ieee: bool
    aligned: bool
    wide_index: bool = False

    @property
    def tile(self) -> int:
        """Features of one warp."""
        return self.units * 8 * self.vec

    def macros(self) -> tuple[tuple[str, str], ...]:
        return (
            ("TYPE", str(self.type)),
            ("VEC", str(self.vec)),
            ("UNITS", str(self.units)),
            ("STEP", str(self.step)),
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
    dtype: torch.dtype, width: int, alignment: int, weighted: bool, precision: str, wide_index: bool
) -> Config:
    """The configuration for rows of ``width`` features that start at multiples of ``alignment`` bytes."""
    size = dtype.itemsize
    vectors = (4, 2) if dtype == torch.float32 else (8, 4, 2)
    aligned = [v for v in vectors if width % v == 0 and alignment % (v * size) == 0 and (width >= 8 * v or v == 2)]
    vec = aligned[0] if aligned else 2
    units = 2 if width > 8 * vec else 1
    words = vec * size // 4
    step = max(1, (4 if size == 4 else 2) // (units * words // 2 or 1))
    ieee = precision == "ieee" and dtype == torch.float32
    return Config(TYPES[dtype], vec, units, step, weighted, ieee, bool(aligned), wide_index)


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
    from cuda.core import LaunchConfig, launch

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
        alignment = 16 if x.data_ptr() % 16 == 0 and out.data_ptr() % 16 == 0 else x.element_size()
        wide = adjacency.rowptr.dtype == torch.int64
        config = configure(x.dtype, width, alignment, values is not None, precision, wide)
    module = nvrtc.load("bitblock_spmm.cu", config.macros(), x.get_device())
    stream = nvrtc.TorchStream(x.device)
    num_items = blocks.items.shape[0]
    num_splits = blocks.splits.shape[0]
    partial = x.new_empty(blocks.partial_window.shape[0] * 8 * heads * width, dtype=torch.float32)
    row_order = blocks.row_order.data_ptr() if blocks.row_order.numel() else 0
    grid = (-(-num_items // WARPS), -(-width // config.tile), heads)
    launch(
        stream, LaunchConfig(grid=grid, block=32 * WARPS), module.get_kernel("bitblock_spmm"),
        blocks.items.data_ptr(), num_items, blocks.block_col.data_ptr(), blocks.block_mask.data_ptr(),
        blocks.block_slot.data_ptr(), 0 if values is None else values.data_ptr(), row_order, x.data_ptr(),
        heads * width, out.data_ptr(), heads * width, partial.data_ptr(), adjacency.num_rows,
        width, heads,
    )  # fmt: skip
    if num_splits:
        launch(
            stream, LaunchConfig(grid=(num_splits, 8, 1), block=128), module.get_kernel("bitblock_combine"),
            blocks.splits.data_ptr(), partial.data_ptr(), row_order, out.data_ptr(), adjacency.num_rows,
            heads * width,
        )  # fmt: skip
    return out
