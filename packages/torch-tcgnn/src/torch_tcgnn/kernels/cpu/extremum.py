"""Row-wise maximum and minimum over neighbours on the CPU, by PyTorch's sparse product with that reduction."""

from __future__ import annotations

import torch
from torch import Tensor

from ...adjacency import Adjacency


def spmm_extremum(adjacency: Adjacency, x: Tensor, weight: Tensor | None, largest: bool) -> tuple[Tensor, Tensor]:
    """Extremum of ``weight · x`` over each row's entries, and the entry that attained it.

    That is the first of equal entries, any of those that are NaN, and −1 where a row has none. ``x`` is ``[K, F]``
    (weights ``[E]``) or ``[K, H, F]`` (weights ``[E, H]``).
    """
    out = x.new_zeros(adjacency.num_rows, *x.shape[1:])
    arg = torch.full(out.shape, -1, dtype=torch.int64)
    if adjacency.num_edges == 0 or out.numel() == 0:
        return out, arg
    values = x.new_ones(adjacency.num_edges) if weight is None else adjacency.to_entries(weight.detach()).to(x.dtype)
    if values.dim() == 1:
        out, arg = _extremum(adjacency, x.detach().flatten(1), values, largest)
        return out.view(-1, *x.shape[1:]), arg.view(-1, *x.shape[1:])
    for head in range(x.shape[1]):
        out[:, head], arg[:, head] = _extremum(adjacency, x.detach()[:, head], values[:, head].contiguous(), largest)
    return out, arg


def _extremum(adjacency: Adjacency, x: Tensor, values: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    """:func:`spmm_extremum` of ``[K, F]`` features and ``[E]`` values in entry order."""
    rowptr, size = adjacency.rowptr, (adjacency.num_rows, x.shape[0])
    with torch.inference_mode(False), torch.enable_grad():  # PyTorch finds the entries only where something trains
        values = values.clone() if values.is_inference() else values
        col = adjacency.col.to(rowptr.dtype)
        matrix = torch.sparse_csr_tensor(rowptr, col, values, size=size, check_invariants=False).requires_grad_()
        with torch._C._AutoDispatchBelowAutograd():
            reduce = torch.ops.aten._sparse_mm_reduce_impl
            out, entry = reduce(matrix, x.contiguous(), "amax" if largest else "amin")
    first = torch.where(rowptr.diff() == 0, -1, rowptr[:-1].long()).unsqueeze(1)
    return out.detach(), torch.where(entry < adjacency.num_edges, entry, first)  # beyond: none, or infinities alone
