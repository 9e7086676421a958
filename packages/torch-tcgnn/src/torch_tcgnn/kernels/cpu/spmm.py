"""Sparse × dense on the CPU.

A row of ``A @ X`` is a weighted sum of the rows of ``X`` that the CSR row lists, which is what an embedding bag
computes; PyTorch's is vectorised by FBGEMM and threaded over bags (see ``balance``). It adds a row to one number, entry
after entry, which drifts where a row is very long: such rows are added again, in pieces. float16 and bfloat16 are
computed in float32, and leave as float32 where that is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ...adjacency import Adjacency
from ...bitblock import entries_of, exclusive_scan
from .balance import balanced
from .permuted import permuted

REDUCED = (torch.float16, torch.bfloat16)
SUM = 0
"""The mode of ``torch.embedding_bag``; called past ``torch.nn.functional``, whose checks take as long as a tiny sum."""
WORTH_PERMUTING = 96
"""Features of a row from which on weights that lie in entry order are permuted for balanced rows at every call."""
LONG = 4096
"""Entries from which on a row is added in pieces: a million additions of 0.1 to one float32 number end at 100,958."""
PIECE = 512
"""Entries that are then added to one number."""

_LONG_ROWS = WeakTensorKeyDictionary()


def spmm(adjacency: Adjacency, x: Tensor, weight: Tensor | None, out_dtype: torch.dtype | None = None) -> Tensor:
    """``[M, F]`` from ``x`` ``[K, F]`` and edge weights ``[E]``, or ``[M, H, F]`` from ``[K, H, F]`` and ``[E, H]``.

    ``out_dtype``: float32 keeps the sums of 16-bit features as they are; default: ``x.dtype``.
    """
    rows, edge = balanced(adjacency), adjacency.edge
    trains_in_order = weight is not None and weight.requires_grad and edge.numel() == 0
    if rows is None or (trains_in_order and x[:1].numel() < WORTH_PERMUTING):
        values = weight if weight is None or edge.numel() == 0 else permuted(weight, edge)
        return _sum_heads(adjacency, adjacency.rowptr, adjacency.col, x, values, out_dtype)
    values = None if weight is None else permuted(weight, rows.edge)
    return _sum_heads(adjacency, rows.rowptr, rows.col, x, values, out_dtype).index_select(0, rows.place)


def _sum_heads(
    adjacency: Adjacency,
    rowptr: Tensor,
    col: Tensor,
    x: Tensor,
    values: Tensor | None,
    out_dtype: torch.dtype | None,
) -> Tensor:
    """:func:`gather_sum`, head by head where there are heads."""
    long = _long_rows_of(adjacency, rowptr)
    if x.dim() == 2:
        return _sum_rows(rowptr, col, x, values, long, out_dtype)
    out = x.new_empty(rowptr.shape[0] - 1, *x.shape[1:], dtype=out_dtype)
    for head in range(x.shape[1]):
        value = None if values is None else values[:, head]
        out[:, head] = _sum_rows(rowptr, col, x[:, head], value, long, out_dtype)
    return out


def segment_sum(adjacency: Adjacency, edge_values: Tensor) -> Tensor:
    """``[M, ...]``: sum of ``[E, ...]`` values in input edge order over the edges of each row."""
    flat = edge_values.unsqueeze(1) if edge_values.dim() == 1 else edge_values.flatten(1)
    column = adjacency.edge
    if column.numel() == 0:
        column = torch.arange(adjacency.num_edges, dtype=adjacency.rowptr.dtype)
    out = _sum_rows(adjacency.rowptr, column, flat, None, _long_rows_of(adjacency, adjacency.rowptr))
    return out.view(adjacency.num_rows, *edge_values.shape[1:])


def gather_sum(rowptr: Tensor, col: Tensor, table: Tensor, values: Tensor | None) -> Tensor:
    """``out[i] = Σ_{k in row i} values[k] · table[col[k]]`` for a ``[K, F]`` table; see :func:`spmm`."""
    return _sum_rows(rowptr, col, table, values, long_rows(rowptr) if col.shape[0] > LONG else None)


def _sum_rows(
    rowptr: Tensor,
    col: Tensor,
    table: Tensor,
    values: Tensor | None,
    long: LongRows | None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """:func:`gather_sum`, the ``long`` rows in pieces."""
    num_rows, width = rowptr.shape[0] - 1, table.shape[1]
    if col.shape[0] == 0 or width == 0 or num_rows == 0:
        return table.new_zeros(num_rows, width, dtype=out_dtype)
    compute = torch.float32 if table.dtype in REDUCED else table.dtype
    rows = _in_one_run(table, compute)
    if values is not None:
        values = _in_one_run(values, compute)
    if rowptr.dtype != col.dtype:
        col = col.to(rowptr.dtype)
    out = _bags(col, rows, rowptr, values)
    if long is not None:
        value = None if values is None else values.index_select(0, long.entry)
        sums = _bags(col.index_select(0, long.entry), rows, long.piece_ptr, value)
        out.index_copy_(0, long.row, _bags(long.piece, sums, long.row_ptr, None))
    wanted = table.dtype if out_dtype is None else out_dtype
    return out if out.dtype == wanted else out.to(wanted)


def _in_one_run(t: Tensor, dtype: torch.dtype) -> Tensor:
    """The values alone, of type ``dtype``, with the strides of a new tensor: bags add fast only over those."""
    if t.requires_grad:
        t = t.detach()
    if t.dtype != dtype:
        t = t.to(dtype)
    return t if t.stride(-1) == 1 and t.is_contiguous() else t.contiguous().flatten().view(t.shape)


@dataclass(frozen=True, eq=False)
class LongRows:
    """The rows of more than :data:`LONG` entries, in pieces of at most :data:`PIECE`.

    Attributes:
        row: ``[L]`` int64: which rows they are.
        entry: ``[e]``: their entries, row after row.
        piece_ptr: ``[P + 1]``: first of ``entry`` in each piece.
        piece: ``[P]``: 0, 1, 2, …
        row_ptr: ``[L + 1]``: first piece of each row.
    """

    row: Tensor
    entry: Tensor
    piece_ptr: Tensor
    piece: Tensor
    row_ptr: Tensor


def _long_rows_of(adjacency: Adjacency, rowptr: Tensor) -> LongRows | None:
    """:func:`long_rows` of an adjacency, or of its rows in another order, remembered with it."""
    known = adjacency.decisions.get("long")
    if known is None or known[0] is not rowptr:
        found = long_rows(rowptr) if int(rowptr[-1]) > LONG else None
        known = adjacency.decisions["long"] = (rowptr, found)
    return known[1]


def long_rows(rowptr: Tensor) -> LongRows | None:
    """The long rows of an adjacency, ``None`` where there is none; found once."""
    found = _LONG_ROWS.get(rowptr)
    if found is None:
        with torch.inference_mode(False):  # training may use what inference built
            found = _LONG_ROWS[rowptr] = (_find_long_rows(rowptr),)
    return found[0]


def _find_long_rows(rowptr: Tensor) -> LongRows | None:
    counts = rowptr.diff()
    row = (counts > LONG).nonzero().view(-1)
    if row.numel() == 0:
        return None
    counts = counts.index_select(0, row)
    entry = entries_of(rowptr, row, int(counts.sum()))
    row_ptr = exclusive_scan((counts + PIECE - 1) // PIECE)
    of_row = torch.repeat_interleave(row_ptr.diff())
    piece = torch.arange(of_row.shape[0])
    start = exclusive_scan(counts).index_select(0, of_row) + (piece - row_ptr.index_select(0, of_row)) * PIECE
    piece_ptr = torch.cat([start, start.new_tensor([entry.shape[0]])])
    return LongRows(row, *(t.to(rowptr.dtype) for t in (entry, piece_ptr, piece, row_ptr)))


def _bags(col: Tensor, rows: Tensor, starts: Tensor, values: Tensor | None) -> Tensor:
    sums, *_ = torch.embedding_bag(rows, col, starts, False, SUM, False, values, True)
    return sums
