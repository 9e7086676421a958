"""Sums over compressed rows in plain PyTorch: the same bits every time, and differentiable any number of times.

``index_add`` on a GPU adds in the order in which its threads arrive; compressed rows have an order. Rows are added in
float64: a million additions of 0.1 to one float32 number end 1 % too high.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def row_sum(entries: Tensor, rowptr: Tensor) -> Tensor:
    """``out[i] = Σ_{k in row i} entries[k]``: ``[E, ...]`` to ``[num_rows, ...]``, 0 in empty rows.

    Args:
        entries: floating point, in entry order.
        rowptr: ``[num_rows + 1]`` integer: first entry of each row.

    Example:
        >>> row_sum(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 1, 1, 3]))
        tensor([1., 0., 6.])
    """
    return RowSum.apply(entries, rowptr)


def spread_rows(rows: Tensor, rowptr: Tensor, num_entries: int) -> Tensor:
    """``out[k] = rows[i]`` for every entry ``k`` of row ``i``: ``[num_rows, ...]`` to ``[num_entries, ...]``.

    Example:
        >>> spread_rows(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1, 1, 3]), 3)
        tensor([1., 3., 3.])
    """
    return SpreadRows.apply(rows, rowptr, num_entries)


class RowSum(torch.autograd.Function):
    """The derivative: every entry takes its row's gradient."""

    @staticmethod
    def forward(entries: Tensor, rowptr: Tensor) -> Tensor:
        total = torch.segment_reduce(entries.double(), "sum", offsets=rowptr.long(), axis=0)
        return total.to(entries.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        entries, rowptr = inputs
        ctx.num_entries = entries.shape[0]
        ctx.save_for_backward(rowptr)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (rowptr,) = ctx.saved_tensors
        return spread_rows(grad_outputs[0], rowptr, ctx.num_entries), None


class SpreadRows(torch.autograd.Function):
    """Values of rows at their entries; the derivative is :class:`RowSum`."""

    @staticmethod
    def forward(rows: Tensor, rowptr: Tensor, num_entries: int) -> Tensor:
        return rows.repeat_interleave(rowptr.long().diff(), dim=0, output_size=num_entries)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (rowptr,) = ctx.saved_tensors
        return row_sum(grad_outputs[0], rowptr), None, None
