"""Merge what the pieces of cut rows found, piece after piece, so that results do not depend on who was first.

A piece of attention's forward is a softmax of its own: its output ``out_p`` and the logarithm ``lse_p`` of its
denominator. The row's are ``lse = log Σ_p exp(lse_p)`` and ``out = Σ_p exp(lse_p − lse) out_p``: attention once more,
with ``lse_p`` as logits. Gradients are plain sums.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ...row_plan import RowPlan
from ..device import on_device
from .attention import ITEMS, features_at, features_of, head_group, softmax_end, softmax_start, softmax_step, store
from .tile import NUM_WARPS, power_of_two

TILE_ELEMENTS = 2048
MAX_PIECES = 128
"""Pieces of one step, at most."""
MAX_COLUMNS = 32
"""Columns of a sum that one program takes."""


@triton.jit(do_not_specialize_on_alignment=ITEMS)
def merge_softmax_kernel(
    out, lse, out_part, lse_part, cut_rows,
    ACC: tl.constexpr, HEADS: tl.constexpr, FEATURES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """One program a cut row and head."""
    row, first, count = _cut_row(cut_rows)
    h, in_h = head_group(HEADS, 1)
    hf, in_hf = features_of(HEADS, FEATURES, 1, BLOCK_F)
    top, total, acc = softmax_start(1, BLOCK_F, ACC)
    for start in range(0, count, BLOCK_P):
        at = start + tl.arange(0, BLOCK_P)
        piece = first + at
        logit_at = lse_part + piece[:, None] * HEADS + h[None, :]
        logit = tl.load(logit_at, mask=at[:, None] < count, other=float("-inf"))
        mask = (at[:, None] < count) & in_hf[None, :]
        value = features_at(out_part, piece, hf, mask, HEADS * FEATURES, 1, ACC)
        top, total, acc = softmax_step(top, total, acc, logit, value, None, piece, h, 0, HEADS)
    result, log_total = softmax_end(top, total, acc, 1.0)
    store(out, None, row, 0, hf, result, in_hf, HEADS * FEATURES)
    store(lse, None, row, 0, h, log_total, in_h, HEADS)


@triton.jit(do_not_specialize_on_alignment=ITEMS)
def add_pieces_kernel(
    one, one_part, other, other_part, cut_rows, one_width, other_width,
    ACC: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One program a cut row and ``BLOCK_C`` columns of one sum, and the same columns of another one if there is one."""
    row, first, count = _cut_row(cut_rows)
    _add(one, one_part, row, first, count, one_width, ACC, BLOCK_P, BLOCK_C)
    if other is not None:
        _add(other, other_part, row, first, count, other_width, ACC, BLOCK_P, BLOCK_C)


@triton.jit
def _cut_row(cut_rows):
    """Row, first piece and number of pieces."""
    at = cut_rows + tl.program_id(0).to(tl.int64) * 3
    first = tl.load(at + 1).to(tl.int64)
    return tl.load(at).to(tl.int64), first, (tl.load(at + 2) - first).to(tl.int32)


@triton.jit
def _add(out, part, row, first, count, width, ACC: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_C], ACC)
    for start in range(0, count, BLOCK_P):
        at = start + tl.arange(0, BLOCK_P)
        mask = (at[:, None] < count) & (c < width)[None, :]
        total += tl.sum(tl.load(part + (first + at)[:, None] * width + c[None, :], mask=mask, other=0), 0)
    tl.store(out + row * width + c, total.to(out.dtype.element_ty), mask=c < width)


def merge_softmax(plan: RowPlan, out: Tensor, lse: Tensor, out_part: Tensor, lse_part: Tensor, acc: tl.dtype) -> None:
    """Write the cut rows of ``out`` ``[M, H, F]`` and ``lse`` ``[M, H]`` from those of their pieces."""
    _, heads, features = out.shape
    block = power_of_two(features)
    with on_device(out):
        merge_softmax_kernel[plan.cut_rows.shape[0], heads](
            out, lse, out_part, lse_part, plan.cut_rows, ACC=acc, HEADS=heads, FEATURES=features,
            BLOCK_P=_pieces(block), BLOCK_F=block, num_warps=NUM_WARPS,
        )  # fmt: skip


def add_pieces(plan: RowPlan, sums: tuple[Tensor, ...], parts: tuple[Tensor, ...], acc: tl.dtype) -> None:
    """Write the cut rows of one or two ``sums`` ``[M, ...]`` from ``parts`` ``[P, ...]``."""
    widths = [part[0].numel() for part in parts]
    block = min(power_of_two(max(widths)), MAX_COLUMNS)
    one, other = zip(sums, parts) if len(sums) == 2 else ((sums[0], parts[0]), (None, None))
    with on_device(sums[0]):
        add_pieces_kernel[plan.cut_rows.shape[0], triton.cdiv(max(widths), block)](
            *one, *other, plan.cut_rows, widths[0], widths[-1],
            ACC=acc, BLOCK_P=_pieces(block), BLOCK_C=block, num_warps=NUM_WARPS,
        )  # fmt: skip


def _pieces(width: int) -> int:
    return max(min(TILE_ELEMENTS // width, MAX_PIECES), 1)
