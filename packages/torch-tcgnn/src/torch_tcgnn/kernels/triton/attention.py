"""What the attention kernels in Triton share: a step of the online softmax, the dropout hash, tiles and launches.

One program holds one row and a group of heads; it walks the row's entries ``BLOCK_E`` at a time and gathers a
``[BLOCK_E, BLOCK_H, BLOCK_F]`` tile of the neighbours' features. Accumulation is float32, float64 for float64 operands.
A row is summed by its own program in the order of its entries: no atomics, two runs agree bit for bit.
Long rows are walked by one program; splitting them needs a merge of ``(top, total, acc)`` by a second launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...adjacency import Adjacency
from ..device import on_device
from ..dropout import FIRST, GAMMA, SECOND, keep_scale, threshold

_GAMMA = tl.constexpr(GAMMA)
_FIRST = tl.constexpr(FIRST)
_SECOND = tl.constexpr(SECOND)
_LOW_34 = tl.constexpr(2**34 - 1)
_LOW_37 = tl.constexpr(2**37 - 1)

TILE_ELEMENTS = 1024
"""Elements of a gathered tile, where one row of it is not wider."""
GROUP_ELEMENTS = 256
"""Heads × features that one program takes, where one head is not wider."""


@triton.jit
def keeps(seed, edge, head, heads, limit):
    """``[BLOCK_E, BLOCK_H]``: whether dropout keeps a weight; the hash of :mod:`..dropout`."""
    z = edge[:, None] * heads + (head + 1)[None, :]
    z = z * _GAMMA + tl.load(seed)
    z = (z ^ ((z >> 30) & _LOW_34)) * _FIRST
    z = (z ^ ((z >> 27) & _LOW_37)) * _SECOND
    return z >= limit


@triton.jit
def softmax_step(logit, top, total):
    """Take ``[BLOCK_E, BLOCK_H]`` logits into a running softmax.

    ``top`` is the largest logit so far (−inf: none), ``total`` the sum of ``exp(logit − top)``. Also returns the new
    entries' terms and the factor that earlier sums shrink by.
    """
    new = tl.maximum(top, tl.max(logit, 0))
    base = tl.where(new == float("-inf"), 0.0, new)
    shrink = tl.exp(top - base)
    term = tl.exp(logit - base[None, :])
    return new, total * shrink + tl.sum(term, 0), term, shrink


@triton.jit
def finish(acc, top, total, keep: tl.constexpr):
    """Output and log-sum-exp of a finished row; a row without a logit above −inf gives 0 and −inf."""
    share = tl.where(total == 0.0, 0.0, keep / total)
    return acc * share[:, None], top + tl.log(total)


@triton.jit
def row_bounds(rowptr, row):
    return tl.load(rowptr + row).to(tl.int64), tl.load(rowptr + row + 1).to(tl.int64)


@triton.jit
def edges_of(edge, entry, live):
    """Input edge of each entry; ``edge`` None: the entry itself."""
    found = entry.to(tl.int64)
    if edge is not None:
        found = tl.load(edge + entry, mask=live, other=0).to(tl.int64)
    return found


@triton.jit
def safe_lse(lse):
    """A target without neighbours has lse −inf; +inf in its place makes its weights 0."""
    return tl.where(lse == float("-inf"), float("inf"), lse)


@dataclass(frozen=True)
class Tile:
    """Sizes of one program; powers of two."""

    entries: int
    heads: int
    features: int
    warps: int


def tile(heads: int, features: int, tiles: int) -> Tile:
    """Sizes for rows of ``heads · features``, with ``tiles`` gathered tiles alive at once."""
    block_f = triton.next_power_of_2(max(features, 1))
    block_h = min(triton.next_power_of_2(max(heads, 1)), max(GROUP_ELEMENTS // block_f, 1))
    width = block_h * block_f
    entries = min(max(TILE_ELEMENTS // (width * (1 if tiles == 1 else 2)), 1), 16)
    warps = min(max(entries * width // TILE_ELEMENTS, width // 128, 1), 16)
    return Tile(entries, block_h, block_f, warps)


@dataclass(frozen=True)
class Dropout:
    """Arguments of the kernels: ``limit`` and ``keep`` of :mod:`..dropout`, and the seed (``None`` without dropout)."""

    seed: Tensor | None
    limit: int
    keep: float

    @classmethod
    def of(cls, dropout: float, seed: Tensor) -> Dropout:
        if dropout == 0.0:
            return cls(None, 0, 1.0)
        return cls(seed, threshold(dropout), keep_scale(dropout))


def accumulator(lse: Tensor) -> tl.dtype:
    return tl.float64 if lse.dtype == torch.float64 else tl.float32


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """float64 where any tensor is, else float32."""
    wide = any(t is not None and t.dtype == torch.float64 for t in tensors)
    return torch.float64 if wide else torch.float32


def adjacency_of(adjacency: Adjacency) -> tuple[Tensor, Tensor, Tensor | None]:
    """``rowptr``, ``col`` and the input edge of each entry (``None``: the entry itself)."""
    return adjacency.rowptr, adjacency.col, adjacency.edge if adjacency.edge.numel() else None


def contiguous(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    return tuple(None if t is None else t.contiguous() for t in tensors)


def launch(
    kernel: triton.JITFunction, rows: int, heads: int, size: Tile, tensors: tuple, *numbers: int, **constants: object
) -> None:
    """Run a kernel with one program a row and group of heads, on the device of its first tensor."""
    if rows == 0 or heads == 0:
        return
    grid = (rows, triton.cdiv(heads, size.heads))
    with on_device(tensors[0]):
        kernel[grid](
            *tensors, *numbers, **constants,
            BLOCK_E=size.entries, BLOCK_H=size.heads, BLOCK_F=size.features, num_warps=size.warps,
        )  # fmt: skip
