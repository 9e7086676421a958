"""``torch_sparse.SparseTensor`` as adjacency: rows are targets, columns are sources.

Recognised by its class name and what it can do; the package ``torch_sparse`` is never imported here.
"""

from __future__ import annotations

from typing import Any

import torch

from .edges import Edges, matrix_size, unless_ones


def is_sparse_tensor(adj: object) -> bool:
    """Whether ``adj`` is torch-sparse's ``SparseTensor``."""
    return type(adj).__name__ == "SparseTensor" and hasattr(adj, "coo") and hasattr(adj, "storage")


def read_sparse_tensor(adj_t: Any, num_nodes: int | tuple[int, int] | None) -> Edges:
    """Entries of a ``SparseTensor`` in its row-major order.

    Raises:
        ValueError: another size than ``num_nodes`` says.
    """
    num_sources, num_targets = matrix_size(num_nodes, adj_t.size(0), adj_t.size(1), "the SparseTensor")
    row, col, value = adj_t.coo()
    if value is not None and not value.is_floating_point():
        value = value.to(torch.get_default_dtype())
    return Edges(torch.stack([col, row]), unless_ones(value), num_sources, num_targets, "replace")
