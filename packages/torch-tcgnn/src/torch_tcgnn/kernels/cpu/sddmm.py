"""Sampled dense × dense on the CPU: ``<a_i, b_j>`` at the entries of the pattern, nowhere else."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...adjacency import Adjacency
from .spmm import REDUCED

VECTOR = 8
"""Fewest float32 features whose products PyTorch computes by vectors."""

with warnings.catch_warnings():  # PyTorch says once a process that CSR tensors are beta; ours stay in this file
    warnings.simplefilter("ignore")
    torch.empty(0, 0, layout=torch.sparse_csr, device="cpu")


def sddmm(adjacency: Adjacency, a: Tensor, b: Tensor) -> Tensor:
    """``[E]`` from ``[M, D]`` and ``[K, D]``, or ``[E, H]`` from ``[M, H, D]`` and ``[K, H, D]``; input edge order."""
    left, right = a.detach(), b.detach()
    if a.dtype in REDUCED:
        left, right = left.float(), right.float()
    if a.dim() == 2:
        entries = sampled_product(adjacency.rowptr, adjacency.col, left, right)
    else:
        heads = [sampled_product(adjacency.rowptr, adjacency.col, left[:, h], right[:, h]) for h in range(a.shape[1])]
        entries = torch.stack(heads, dim=1) if heads else left.new_zeros(adjacency.num_edges, 0)
    return adjacency.to_edges(entries if entries.dtype == a.dtype else entries.to(a.dtype))


def sampled_product(rowptr: Tensor, col: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``[E]`` in entry order for two-dimensional operands."""
    if col.shape[0] == 0 or a.shape[1] == 0:
        return a.new_zeros(col.shape[0])
    if col.shape[0] > a.shape[0] * b.shape[0]:  # duplicates that PyTorch's kernel cannot hold: all products are fewer
        row = torch.repeat_interleave(rowptr.diff(), output_size=col.shape[0])
        return (a @ b.t())[row, col]
    if rowptr.dtype != col.dtype:
        col = col.to(rowptr.dtype)
    pattern = torch.sparse_csr_tensor(
        rowptr, col, a.new_zeros(col.shape[0]), size=(a.shape[0], b.shape[0]), check_invariants=False
    )
    left, right = padded(a).contiguous(), padded(b).contiguous()
    return torch.sparse.sampled_addmm(pattern, left, right.t(), beta=0.0, out=pattern).values()


def padded(x: Tensor) -> Tensor:
    """``[..., D]`` with zeros up to the vector length, under which PyTorch's products are ten times slower."""
    short = x.dtype == torch.float32 and 1 < x.shape[-1] < VECTOR
    return pad(x, (0, VECTOR - x.shape[-1])) if short else x
