"""What the three attention kernels of the CPU share: rows in chunks, a chunk's softmax, sums and products.

A chunk has at most :data:`CHUNK_ELEMENTS` elements (more only where one row is longer). Nothing of the size of all
edges is held but edge gradients that were asked for and, on graphs where they take at most :data:`HELD_BYTES`, what
backward's first pass found at the edges. float16 and bfloat16 are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...adjacency import Adjacency
from ..dropout import dropout_factor
from .extremum import row_chunks
from .sddmm import sampled_product
from .spmm import gather_sum

CHUNK_ELEMENTS = 1 << 17
"""Elements of one temporary of a chunk (512 KiB of float32): small enough for the cache and for memory reuse."""
HELD_BYTES = 32 << 20
"""Most memory for weights and gradients of logits that the second pass of backward finds ready."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """Rows ``first`` to ``last`` of an adjacency with their ``e`` entries.

    Attributes:
        begin: first of its entries.
        rowptr: ``[last − first + 1]``, from 0.
        col: ``[e]`` column of each entry.
        row: ``[e]`` row of each entry, counted from ``first``.
        edge: ``[e]`` input edge of each entry.
    """

    first: int
    last: int
    begin: int
    rowptr: Tensor
    col: Tensor
    row: Tensor
    edge: Tensor

    @property
    def rows(self) -> slice:
        return slice(self.first, self.last)

    def at_rows(self, table: Tensor) -> Tensor:
        """``[e, ...]``: the value of each entry's row in a table of all rows."""
        return table[self.first : self.last].index_select(0, self.row)

    def at_cols(self, table: Tensor) -> Tensor:
        """``[e, ...]``: the value of each entry's column."""
        return table.index_select(0, self.col)

    def total(self, entries: Tensor) -> Tensor:
        """``[rows, ...]``: sum of ``[e, ...]`` entries by row."""
        identity = torch.arange(self.col.shape[0], dtype=self.rowptr.dtype)
        flat = entries.reshape(self.col.shape[0], -1)
        return gather_sum(self.rowptr, identity, flat, None).view(self.last - self.first, *entries.shape[1:])

    def weighted_sum(self, weight: Tensor, tables: Tensor) -> Tensor:
        """``[rows, H, F]``: ``Σ weight[e, h] · tables[h, col[e]]`` for ``[H, K, F]`` tables."""
        by_head = weight.t().contiguous()
        sums = [gather_sum(self.rowptr, self.col, table, w) for table, w in zip(tables, by_head)]
        return torch.stack(sums, dim=1) if sums else tables.new_zeros(self.last - self.first, 0, tables.shape[2])

    def product(self, rows: Tensor, tables: Tensor) -> Tensor:
        """``[e, H]``: ``<rows[row], tables[:, col]>`` for two tables ``[H, ·, D]``, the first of all rows."""
        heads = [sampled_product(self.rowptr, self.col, a[self.rows], b) for a, b in zip(rows, tables)]
        return torch.stack(heads).t().contiguous() if heads else tables.new_zeros(self.col.shape[0], 0)


def chunks(adjacency: Adjacency, width: int) -> Iterator[Chunk]:
    """Cut an adjacency into chunks for ``width`` elements an entry; rows without entries at all may be left out."""
    rowptr = adjacency.rowptr
    for first, last in row_chunks(rowptr, CHUNK_ELEMENTS // max(width, 1)):
        begin, end = int(rowptr[first]), int(rowptr[last])
        if begin == end:
            continue
        local = rowptr[first : last + 1] - begin
        row = torch.arange(last - first).repeat_interleave(local.diff(), output_size=end - begin)
        edge = adjacency.edge[begin:end] if adjacency.edge.numel() else torch.arange(begin, end)
        yield Chunk(first, last, begin, local, adjacency.col[begin:end].to(rowptr.dtype), row, edge)


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """float64 where any tensor is, else float32."""
    wide = any(t is not None and t.dtype == torch.float64 for t in tensors)
    return torch.float64 if wide else torch.float32


def by_head(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``[N, H, F]`` as contiguous ``[H, N, F]``."""
    return x.detach().to(dtype).transpose(0, 1).contiguous()


def aggregate(
    adjacency: Adjacency,
    value: Tensor,
    logits: Callable[[Chunk], Tensor],
    dtype: torch.dtype,
    width: int,
    dropout: float,
    seed: Tensor,
    edge_value: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax of ``logits`` over each row, then the weighted sum of ``value`` (plus ``edge_value`` of the edge).

    Returns:
        ``out`` ``[M, H, F]`` in the dtype of ``value`` and ``lse`` ``[M, H]``, the logarithm of each denominator.
        Rows without entries (or with no logit above −inf) give 0 and −inf.
    """
    _, heads, features = value.shape
    out = value.new_zeros(adjacency.num_rows, heads, features)
    lse = torch.full((adjacency.num_rows, heads), float("-inf"), dtype=dtype)
    tables = by_head(value, dtype)
    for chunk in chunks(adjacency, width):
        entries = logits(chunk)
        top = torch.segment_reduce(entries, "max", offsets=chunk.rowptr, axis=0, initial=float("-inf"))
        top = top.masked_fill_(top == float("-inf"), 0.0)
        weight = entries.sub_(top.index_select(0, chunk.row)).exp_()
        total = chunk.total(weight)
        lse[chunk.rows] = total.log() + top
        factor = dropout_factor(seed, chunk.edge, heads, dropout, dtype)
        if factor is not None:
            weight *= factor
        message = chunk.weighted_sum(weight, tables)
        if edge_value is not None:
            message += chunk.total(weight.unsqueeze(-1) * edge_value.index_select(0, chunk.edge).to(dtype))
        inverse = total.reciprocal().masked_fill_(total == 0.0, 0.0)
        out[chunk.rows] = message.mul_(inverse.unsqueeze(-1)).to(out.dtype)
    return out, lse


@dataclass(frozen=True, eq=False)
class Saved:
    """What backward knows of the softmax: the incoming gradient and, for each target, two numbers a head.

    Attributes:
        grad: ``[H, M, F]`` gradient of the output.
        lse: ``[M, H]``; −inf is stored as +inf, so that a target without neighbours gives weights of 0.
        delta: ``[M, H]``: ``<grad, out>``, the mean of the weights' gradients under the softmax.
        held: ``[E, H]`` weights after dropout and gradients of logits in the order of the rows' entries; ``None`` where
            they are too large.
        place: ``[E]`` where there an input edge stands.
    """

    grad: Tensor
    lse: Tensor
    delta: Tensor
    dropout: float
    seed: Tensor
    held: tuple[Tensor, Tensor] | None
    place: Tensor | None

    @classmethod
    def of(cls, adjacency: Adjacency, grad: Tensor, out: Tensor, lse: Tensor, dropout: float, seed: Tensor) -> Saved:
        delta = (grad.detach().to(lse.dtype) * out.to(lse.dtype)).sum(-1)
        shape, held, place = (adjacency.num_edges, lse.shape[1]), None, None
        if 2 * shape[0] * shape[1] * lse.element_size() <= HELD_BYTES:
            held = lse.new_empty(shape), lse.new_empty(shape)
            if adjacency.edge.numel():
                place = torch.empty_like(adjacency.edge)
                place[adjacency.edge.long()] = torch.arange(shape[0], dtype=place.dtype)
        lse = lse.masked_fill(lse == float("-inf"), float("inf"))
        return cls(by_head(grad, lse.dtype), lse, delta, dropout, seed, held, place)

    def at_rows(self, chunk: Chunk, logits: Tensor, grad_weight: Tensor) -> tuple[Tensor, Tensor]:
        """Weights after dropout and gradient of the logits, both ``[e, H]``, where targets are the chunk's rows.

        ``grad_weight`` is the gradient of the weights after dropout; both it and ``logits`` are overwritten.
        """
        found = self._entries(chunk, logits, grad_weight, chunk.at_rows)
        if self.held is not None:
            for held, entries in zip(self.held, found):
                held[chunk.begin : chunk.begin + entries.shape[0]] = entries
        return found

    def at_cols(self, chunk: Chunk, recompute: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """The same where targets are the chunk's columns; ``recompute`` gives ``logits`` and ``grad_weight``."""
        if self.held is not None:
            weight, grad_logits = self.held
            place = chunk.edge if self.place is None else self.place.index_select(0, chunk.edge)
            return weight.index_select(0, place), grad_logits.index_select(0, place)
        return self._entries(chunk, *recompute(), chunk.at_cols)

    def _entries(
        self, chunk: Chunk, logits: Tensor, grad_weight: Tensor, at_targets: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        alpha = logits.sub_(at_targets(self.lse)).exp_()
        factor = dropout_factor(self.seed, chunk.edge, alpha.shape[1], self.dropout, alpha.dtype)
        if factor is not None:
            grad_weight *= factor
        grad_logits = grad_weight.sub_(at_targets(self.delta)).mul_(alpha)
        return alpha if factor is None else alpha.mul_(factor), grad_logits
