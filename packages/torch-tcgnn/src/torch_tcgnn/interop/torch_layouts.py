"""PyTorch's sparse tensors (COO, CSR, CSC) as adjacency ``adj_t``: rows are targets, columns are sources."""

from __future__ import annotations

import torch
from torch import Tensor

from .edges import Edges, matrix_size, unless_ones

LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


def read_torch_sparse_layout(adj_t: Tensor, num_nodes: int | tuple[int, int] | None) -> Edges:
    """Entries of ``adj_t`` in storage order (COO is coalesced first, as PyG does).

    Raises:
        TypeError: no tensor, or complex values.
        ValueError: not a matrix, or another size than ``num_nodes`` says.
    """
    if not isinstance(adj_t, Tensor):
        raise TypeError(f"adj_t must be a torch sparse tensor (COO, CSR or CSC), got {type(adj_t).__name__}")
    if adj_t.layout not in LAYOUTS:
        raise ValueError(f"sparse adjacency must be COO, CSR or CSC, got {adj_t.layout}")
    if adj_t.dim() - adj_t.dense_dim() != 2:
        raise ValueError(f"sparse adjacency must be a matrix, got shape {tuple(adj_t.shape)}")
    num_sources, num_targets = matrix_size(num_nodes, adj_t.shape[0], adj_t.shape[1], "the sparse adjacency")
    if adj_t.layout == torch.sparse_coo:
        adj_t = adj_t.coalesce()
        (row, col), value = adj_t.indices(), adj_t.values()
    elif adj_t.layout == torch.sparse_csr:
        row, col, value = expand(adj_t.crow_indices()), adj_t.col_indices(), adj_t.values()
    else:
        row, col, value = adj_t.row_indices(), expand(adj_t.ccol_indices()), adj_t.values()
    if value.is_complex():
        raise TypeError(f"sparse adjacency must hold real values, got {value.dtype}")
    value = value if value.is_floating_point() else value.to(torch.get_default_dtype())
    weight = unless_ones(value if value.requires_grad else value.clone())  # a view would keep the matrix alive
    return Edges(torch.stack([col.long(), row.long()]), weight, num_sources, num_targets, "sum")


def expand(pointer: Tensor) -> Tensor:
    """``[E]``: the row of each entry of a compressed pointer ``[rows + 1]``."""
    return torch.arange(pointer.shape[0] - 1, device=pointer.device).repeat_interleave(pointer.diff())
