"""Launches of the attention kernels: one program an item of the work list and group of heads, longest items first.

Where rows are cut, their pieces write to a workspace of ``[pieces, ...]`` in the accumulator's type, and a second
launch merges it; else there is neither.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...adjacency import Adjacency
from ..device import on_device
from ..dropout import keep_scale, threshold
from .attention_merge import add_pieces, merge_softmax
from .lanes import lists, num_programs
from .plans import plan_of

TILE_ELEMENTS = 1024
"""Elements of a gathered tile, where one row of it is not wider."""
GROUP_ELEMENTS = 256
"""Heads × features that one program takes, where one head is not wider."""


@dataclass(frozen=True)
class Tile:
    """Sizes of one program; powers of two."""

    entries: int
    heads: int
    features: int
    warps: int


@functools.cache
def tile(heads: int, features: int, tiles: int) -> Tile:
    """Sizes for rows of ``heads · features``, with ``tiles`` gathered tiles alive at once."""
    block_f = triton.next_power_of_2(max(features, 1))
    block_h = min(triton.next_power_of_2(max(heads, 1)), max(GROUP_ELEMENTS // block_f, 1))
    width = block_h * block_f
    entries = min(max(TILE_ELEMENTS // (width * (1 if tiles == 1 else 2)), 1), 16)
    warps = min(max(entries * width // TILE_ELEMENTS, width // 128, 1), 16)
    return Tile(entries, block_h, block_f, warps)


@dataclass(frozen=True)
class Walk:
    """What the launches of one call share.

    Attributes:
        operands: the form's three tensors and the one of the edges, contiguous.
        heads: number of heads.
        dropout: probability that a weight becomes 0.
        seed: of dropout.
        constants: of the form; ``HEADS`` and ``FEATURES`` among them.
        dtype: of sums: float64 where any operand is, else float32.
    """

    operands: tuple[Tensor | None, ...]
    heads: int
    dropout: float
    seed: Tensor
    constants: dict[str, Any]
    dtype: torch.dtype

    @classmethod
    def of(
        cls, operands: tuple[Tensor | None, ...], value: Tensor, dropout: float, seed: Tensor, **constants: Any
    ) -> Walk:
        """Of a form whose values are ``[..., H, F]``."""
        heads, features = value.shape[-2:]
        operands = tuple(None if t is None else t.contiguous() for t in operands)
        wide = any(t is not None and t.dtype == torch.float64 for t in operands)
        constants |= {"HEADS": heads, "FEATURES": features}
        return cls(operands, heads, dropout, seed, constants, torch.float64 if wide else torch.float32)

    def attend(
        self, kernel: triton.JITFunction, size: Tile, adjacency: Adjacency, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Output ``[M, H, F]`` and lse ``[M, H]`` of values ``[K, H, F]``."""
        out = value.new_empty(adjacency.num_rows, *value.shape[1:])
        lse = value.new_empty(out.shape[:2], dtype=self.dtype)
        parts = self._run(kernel, size, adjacency, (out, lse), (), ())
        if parts:
            merge_softmax(plan_of(adjacency), out, lse, *parts, self._accumulator)
        return out, lse

    def differentiate(
        self, kernel: triton.JITFunction, size: Tile, adjacency: Adjacency, sums: tuple[Tensor, ...],
        stored: tuple[Tensor | None, ...], context: tuple[Tensor, ...],
    ) -> None:  # fmt: skip
        """Write ``sums`` over the rows' entries, and what else the kernel stores, from operands and ``context``."""
        parts = self._run(kernel, size, adjacency, sums, stored, context)
        if parts:
            add_pieces(plan_of(adjacency), sums, parts, self._accumulator)

    @property
    def _accumulator(self) -> tl.dtype:
        return tl.float64 if self.dtype == torch.float64 else tl.float32

    def _run(
        self, kernel: triton.JITFunction, size: Tile, adjacency: Adjacency, results: tuple[Tensor, ...],
        stored: tuple[Tensor | None, ...], context: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Launch; the results of pieces, none where no row is cut."""
        if adjacency.num_rows == 0 or self.heads == 0:
            return ()
        items = lists(plan_of(adjacency))
        num_pieces = items[4]
        parts = tuple(t.new_empty(num_pieces, *t.shape[1:], dtype=self.dtype) for t in results) if num_pieces else ()
        edge = adjacency.edge if adjacency.edge.numel() else None
        drops = self.dropout > 0.0
        with on_device(results[0]):
            kernel[num_programs(items, 1), triton.cdiv(self.heads, size.heads)](
                *results, *(parts or [None] * len(results)), *stored, *items[:5], adjacency.col, edge,
                *self.operands, *context, self.seed if drops else None, threshold(self.dropout) if drops else 0,
                KEEP=keep_scale(self.dropout), ACC=self._accumulator,
                BLOCK_E=size.entries, BLOCK_H=size.heads, BLOCK_F=size.features, num_warps=size.warps,
                **self.constants,
            )  # fmt: skip
        return parts
