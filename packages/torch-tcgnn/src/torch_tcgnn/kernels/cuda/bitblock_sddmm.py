"""Launcher of ``bitblock_sddmm.cu``: picks a configuration for the width and type, fills the arguments."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...adjacency import Adjacency
from . import nvrtc
from .bitblock_spmm import TYPES, WARPS


@dataclass(frozen=True)
class Config:
    """One compilation of the kernel (see the macros in its source)."""

    type: int
    chunks: int
    keep: bool
    ieee: bool
    aligned: bool
    wide_index: bool = False

    def macros(self) -> tuple[tuple[str, str], ...]:
        return (
            ("TYPE", str(self.type)),
            ("CHUNKS", str(self.chunks)),
            ("KEEP", str(int(self.keep))),
            ("IEEE", str(int(self.ieee))),
            ("ALIGNED", str(int(self.aligned))),
            ("SlotIndex", "long long" if self.wide_index else "int"),
            ("WARPS", str(WARPS)),
        )


@functools.cache
def configure(dtype: torch.dtype, width: int, aligned: bool, precision: str, wide_index: bool) -> Config:
    """The configuration for operands of ``width`` features; ``aligned``: rows start at multiples of 16 bytes."""
    chunk = 64 // dtype.itemsize
    chunks = next(c for c in (1, 2, 4) if c * chunk >= width or c == 4)
    ieee = precision == "ieee" and dtype == torch.float32
    return Config(TYPES[dtype], chunks, chunks * chunk >= width, ieee, aligned, wide_index)


@functools.cache
def _kernel(config: Config, device: int) -> Any:
    return nvrtc.kernel("bitblock_sddmm.cu", config.macros(), "bitblock_sddmm", device)


def sddmm(adjacency: Adjacency, a: Tensor, b: Tensor, precision: str, config: Config | None = None) -> Tensor:
    """``[E]`` from ``[M, D]`` and ``[K, D]``, or ``[E, H]`` from ``[M, H, D]`` and ``[K, H, D]``; input edge order.

    ``config`` fixes the configuration, for tuning.
    """
    launch = nvrtc.launcher()
    blocks = adjacency.blocks
    assert blocks is not None
    heads, width = (a.shape[1], a.shape[2]) if a.dim() == 3 else (1, a.shape[1])
    out = a.new_empty(adjacency.num_edges, *a.shape[1:-1])
    if out.numel() == 0 or width == 0:
        return out.zero_()
    a, b = a.contiguous(), b.contiguous()
    if config is None:
        aligned = a.data_ptr() % 16 == 0 and b.data_ptr() % 16 == 0 and width * a.element_size() % 16 == 0
        wide = adjacency.rowptr.dtype == torch.int64
        config = configure(a.dtype, width, aligned, precision, wide)
    num_items = blocks.items.shape[0]
    launch(
        nvrtc.current_stream(a.device), nvrtc.launch_config((-(-num_items // WARPS), 1, heads), 32 * WARPS),
        _kernel(config, a.get_device()), blocks.items.data_ptr(), num_items, blocks.block_col.data_ptr(),
        blocks.block_mask.data_ptr(), blocks.block_slot.data_ptr(), blocks.slot_entry.data_ptr(),
        nvrtc.address(blocks.slot_ptr), nvrtc.address(adjacency.edge), nvrtc.address(blocks.row_order), a.data_ptr(),
        b.data_ptr(), out.data_ptr(), adjacency.num_rows, width, heads,
    )  # fmt: skip
    return out
