"""SciPy sparse matrices and arrays as adjacency: rows are targets, so that ``spmm(g, x)`` is ``m @ x``.

Recognised by their module; SciPy is never imported here. (PyG's ``from_scipy_sparse_matrix`` reads rows as sources: for
that reading give ``m.T``.)
"""

from __future__ import annotations

from typing import Any

import torch

from .edges import Edges, matrix_size, unless_ones


def is_scipy(adj: object) -> bool:
    """Whether ``adj`` is a SciPy sparse matrix or array."""
    return type(adj).__module__.startswith("scipy.sparse") and hasattr(adj, "tocoo")


def read_scipy(matrix: Any, num_nodes: int | tuple[int, int] | None) -> Edges:
    """Stored entries in row-major order, explicit zeros and duplicates included.

    Raises:
        TypeError: complex values.
        ValueError: not two-dimensional, or another size than ``num_nodes`` says.
    """
    if len(matrix.shape) != 2:
        raise ValueError(f"SciPy adjacency must be a matrix, got shape {matrix.shape}")
    num_sources, num_targets = matrix_size(num_nodes, matrix.shape[0], matrix.shape[1], "the SciPy matrix")
    coo = matrix.tocoo()
    edge_index = torch.stack([torch.from_numpy(ids.astype("int64")) for ids in (coo.col, coo.row)])
    if coo.data.dtype.kind not in "biuf":
        raise TypeError(f"SciPy adjacency must hold real values, got {coo.data.dtype}")
    if coo.data.dtype.kind == "f" and coo.data.dtype.itemsize > 8:  # NumPy's longdouble, which PyTorch lacks
        coo = coo.astype("float64")
    value = torch.from_numpy(coo.data.copy())
    if not value.is_floating_point():
        value = value.to(torch.get_default_dtype())
    return Edges(edge_index, unless_ones(value), num_sources, num_targets)
