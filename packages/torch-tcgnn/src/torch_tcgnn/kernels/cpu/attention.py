"""What the three attention kernels of the CPU share: a chunk's softmax and sum, and what their backwards know.

Nothing of the size of all edges is held but edge gradients that were asked for and, on graphs where they take at most
:data:`HELD_BYTES`, what backward's pass over rows found at the edges and its pass over columns needs. float16 and
bfloat16 are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import ref

import torch
from torch import Tensor

from ...adjacency import Adjacency
from ..dropout import dropout_factor
from .chunk import Chunk, chunks, once
from .sddmm import padded
from .spmm import gather_sum

HELD_BYTES = 32 << 20
"""Most memory for what the second pass of backward finds ready."""
PLACE_BYTES = 16
"""Most bytes an edge that the search for its place takes."""
SPREAD = 24.0
"""Largest difference of a chunk's logits under which one maximum serves all its rows: far above underflow, and the
subtraction rounds no more than the logits themselves are rounded."""


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """float64 where any tensor is, else float32."""
    wide = any(t is not None and t.dtype == torch.float64 for t in tensors)
    return torch.float64 if wide else torch.float32


def table(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``[N, H, F]``, contiguous."""
    return x.detach().to(dtype).contiguous()


def by_head(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``[N, H, F]`` as contiguous ``[H, N, F]``, or ``[N, H]`` as ``[H, N]``."""
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
    """Softmax of ``logits`` ``[H, e]`` over each row, then the weighted sum of ``value`` (and of ``edge_value``).

    Returns:
        ``out`` ``[M, H, F]`` in the dtype of ``value`` and ``lse`` ``[M, H]``, the logarithm of each denominator.
        Rows without entries (or with no logit above −inf) give 0 and −inf.
    """
    num_cols, heads, features = value.shape
    out = value.new_zeros(adjacency.num_rows, heads, features)
    lse = torch.full((adjacency.num_rows, heads), float("-inf"), dtype=dtype)
    if heads == 0:
        return out, lse
    values = table(value, dtype)
    for chunk in chunks(adjacency, width, heads, num_cols):
        weight, top = _exponentials(chunk, logits(chunk))
        total = chunk.total(weight.t())
        torch.add(total.log(), top, out=lse[chunk.rows])
        factor = dropout_factor(seed, chunk.edge, heads, dropout, dtype, head_major=True) if dropout else None
        if factor is not None:
            weight *= factor
        message = chunk.weighted_sum(weight, values)
        if edge_value is not None:
            message = message + chunk.total(weight.t().unsqueeze(-1) * at_edges(chunk, edge_value, dtype))
        inverse = total.reciprocal().masked_fill_(total == 0.0, 0.0).unsqueeze(-1)
        if out.dtype == dtype:
            torch.mul(message, inverse, out=out[chunk.rows])
        else:
            out[chunk.rows] = message * inverse
    return out, lse


def at_edges(chunk: Chunk, edge: Tensor, dtype: torch.dtype) -> Tensor:
    """``[e, ...]``: the value of each entry's edge."""
    return edge.detach().index_select(0, chunk.edge).to(dtype)


def _exponentials(chunk: Chunk, logits: Tensor) -> tuple[Tensor, Tensor]:
    """``exp(logits − top)`` in the place of ``logits``; ``top`` is one number, ``[rows, H]`` where they differ much."""
    top = logits.amax()
    if not bool(top - logits.amin() <= SPREAD):  # −inf and NaN come here as well
        lowest = float("-inf")
        top = torch.segment_reduce(logits.t().contiguous(), "max", offsets=chunk.rowptr, axis=0, initial=lowest)
        top = top.masked_fill_(top == lowest, 0.0)
        return logits.sub_(top.index_select(0, chunk.row - chunk.first).t()).exp_(), top
    return logits.sub_(top).exp_(), top


@dataclass(frozen=True, eq=False)
class Softmax:
    """What backward knows of the softmax: the incoming gradient and, for each target, two numbers a head.

    Attributes:
        grad: ``[M, H, F]`` gradient of the output.
        grad_by_head: ``[H, M, F']``, the same, padded for products.
        lse: ``[H, M]``; −inf is stored as +inf, so that a target without neighbours gives weights of 0.
        delta: ``[H, M]``: ``<grad, out>``, the mean of the weights' gradients under the softmax.
    """

    grad: Tensor
    grad_by_head: Tensor
    lse: Tensor
    delta: Tensor
    dropout: float
    seed: Tensor

    @classmethod
    def of(cls, grad: Tensor, out: Tensor, lse: Tensor, dropout: float, seed: Tensor) -> Softmax:
        dense = table(grad, lse.dtype)
        delta = (dense * out.to(lse.dtype)).sum(-1).t().contiguous()
        lse = lse.t().masked_fill(lse.t() == float("-inf"), float("inf")).contiguous()
        return cls(dense, padded(by_head(grad, lse.dtype)), lse, delta, dropout, seed)

    def at_rows(self, chunk: Chunk, logits: Tensor, grad_weight: Tensor) -> tuple[Tensor, Tensor]:
        """Weights after dropout and gradient of the logits, both ``[H, e]``, where targets are the chunk's rows.

        ``grad_weight`` is the gradient of the weights after dropout; both it and ``logits`` are overwritten.
        """
        return self._entries(chunk, logits, grad_weight, chunk.at_rows)

    def at_cols(self, chunk: Chunk, logits: Tensor, grad_weight: Tensor) -> tuple[Tensor, Tensor]:
        """The same where targets are the chunk's columns."""
        return self._entries(chunk, logits, grad_weight, chunk.at_cols)

    def _entries(
        self, chunk: Chunk, logits: Tensor, grad_weight: Tensor, at_targets: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        alpha, factor = logits.sub_(at_targets(self.lse)).exp_(), None
        if self.dropout:
            heads, dtype = chunk.heads, alpha.dtype
            factor = dropout_factor(self.seed, chunk.edge, heads, self.dropout, dtype, head_major=True)
        if factor is not None:
            grad_weight *= factor
        grad_logits = grad_weight.sub_(at_targets(self.delta)).mul_(alpha)
        return alpha if factor is None else alpha.mul_(factor), grad_logits


class Held:
    """Tables of all entries, filled by the pass over rows and read by the pass over columns.

    Args:
        adjacency: whose entries they are, along dimension ``dim``.
        transposed: whose order they are read in.
        shape: of the table.
        dim: 0 or 1.
        dtype: of the table.
    """

    def __init__(
        self, adjacency: Adjacency, transposed: Adjacency, shape: tuple[int, int], dim: int, dtype: torch.dtype
    ) -> None:
        self.transposed, self.shape, self.dim, self.dtype = transposed, shape, dim, dtype
        self.place = _places(adjacency, transposed)
        self.entries: Tensor | None = None

    def put(self, chunk: Chunk, entries: Tensor) -> None:
        """Keep what was found at the entries of a chunk; the caller does not change it afterwards."""
        if chunk.end - chunk.begin == self.shape[self.dim]:
            self.entries = entries
            return
        if self.entries is None:
            self.entries = torch.empty(self.shape, dtype=self.dtype)
        self.entries.narrow(self.dim, chunk.begin, chunk.end - chunk.begin).copy_(entries)

    def at(self, chunk: Chunk) -> Tensor:
        """What was found at the edges of a chunk of the transposed adjacency."""
        return self._filled().index_select(self.dim, self.place[chunk.begin : chunk.end])

    def total(self) -> Tensor:
        """``[K, ...]``: the sums over the columns' entries of a table ``[E, ...]``."""
        return gather_sum(self.transposed.rowptr, self.place, self._filled(), None)

    def _filled(self) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype) if self.entries is None else self.entries


def fits(adjacency: Adjacency, per_edge: int, dtype: torch.dtype) -> bool:
    """Whether ``per_edge`` elements an edge, and what finds their places again, may be held."""
    return adjacency.num_edges * (per_edge * dtype.itemsize + PLACE_BYTES) <= HELD_BYTES


def _places(adjacency: Adjacency, transposed: Adjacency) -> Tensor:
    """``[E]``: where among the rows' entries each of the columns' entries stands."""

    def build() -> tuple[ref[Adjacency], Tensor]:
        count = torch.arange(adjacency.num_edges, dtype=adjacency.rowptr.dtype)
        of_edge = count
        if adjacency.edge.numel():
            of_edge = torch.empty_like(count)
            of_edge[adjacency.edge.long()] = count
        edge = transposed.edge
        return ref(adjacency), of_edge.index_select(0, edge) if edge.numel() else of_edge

    of_whom, place = once(transposed, "place", build)
    return place if of_whom() is adjacency else build()[1]
