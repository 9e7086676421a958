"""Sparse × dense on the CPU.

A row of ``A @ X`` is a weighted sum of the rows of ``X`` that the CSR row lists, which is what an embedding bag
computes; PyTorch's is vectorised by FBGEMM and threaded over bags (see ``balance``). float16 and bfloat16 are computed
in float32, and leave as float32 where that is asked for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...adjacency import Adjacency
from .balance import balanced
from .permuted import permuted

REDUCED = (torch.float16, torch.bfloat16)
WORTH_PERMUTING = 96
"""Features of a row from which on weights that lie in entry order are permuted for balanced rows at every call."""


def spmm(adjacency: Adjacency, x: Tensor, weight: Tensor | None, out_dtype: torch.dtype | None = None) -> Tensor:
    """``[M, F]`` from ``x`` ``[K, F]`` and edge weights ``[E]``, or ``[M, H, F]`` from ``[K, H, F]`` and ``[E, H]``.

    ``out_dtype``: float32 keeps the sums of 16-bit features as they are; default: ``x.dtype``.
    """
    rows, edge = balanced(adjacency), adjacency.edge
    trains_in_order = weight is not None and weight.requires_grad and edge.numel() == 0
    if rows is None or (trains_in_order and x[:1].numel() < WORTH_PERMUTING):
        values = weight if weight is None or edge.numel() == 0 else permuted(weight, edge)
        return _sum_heads(adjacency.rowptr, adjacency.col, x, values, out_dtype)
    values = None if weight is None else permuted(weight, rows.edge)
    return _sum_heads(rows.rowptr, rows.col, x, values, out_dtype).index_select(0, rows.place)


def _sum_heads(rowptr: Tensor, col: Tensor, x: Tensor, values: Tensor | None, out_dtype: torch.dtype | None) -> Tensor:
    """:func:`gather_sum`, head by head where there are heads."""
    if x.dim() == 2:
        return gather_sum(rowptr, col, x, values, out_dtype)
    out = x.new_empty(rowptr.shape[0] - 1, *x.shape[1:], dtype=out_dtype)
    for head in range(x.shape[1]):
        value = None if values is None else values[:, head]
        out[:, head] = gather_sum(rowptr, col, x[:, head], value, out_dtype)
    return out


def segment_sum(adjacency: Adjacency, edge_values: Tensor) -> Tensor:
    """``[M, ...]``: sum of ``[E, ...]`` values in input edge order over the edges of each row."""
    flat = edge_values.unsqueeze(1) if edge_values.dim() == 1 else edge_values.flatten(1)
    column = adjacency.edge
    if column.numel() == 0:
        column = torch.arange(adjacency.num_edges, dtype=adjacency.rowptr.dtype)
    out = gather_sum(adjacency.rowptr, column, flat, None)
    return out.view(adjacency.num_rows, *edge_values.shape[1:])


def gather_sum(
    rowptr: Tensor, col: Tensor, table: Tensor, values: Tensor | None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """``out[i] = Σ_{k in row i} values[k] · table[col[k]]`` for a ``[K, F]`` table; see :func:`spmm`."""
    num_rows, width = rowptr.shape[0] - 1, table.shape[1]
    if col.shape[0] == 0 or width == 0 or num_rows == 0:
        return table.new_zeros(num_rows, width, dtype=out_dtype)
    compute = torch.float32 if table.dtype in REDUCED else table.dtype
    rows = table.detach().to(compute).contiguous().flatten().view(table.shape)  # the fast sum wants a last stride of 1
    if values is not None:
        values = values.detach().to(compute).contiguous()
    if rowptr.dtype != col.dtype:
        col = col.to(rowptr.dtype)
    out = torch.nn.functional.embedding_bag(
        col, rows, rowptr, mode="sum", per_sample_weights=values, include_last_offset=True
    )
    return out.to(table.dtype if out_dtype is None else out_dtype)
