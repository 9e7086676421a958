"""Which rows share a tensor-core window.

A window gathers each distinct column of its rows once, so rows with common neighbours belong together. Only the
grouping changes: outputs are written to their own rows, and columns are never renumbered.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .adjacency import Adjacency

REORDERS = ("none", "degree", "rcm", "lsh", "community")
NUM_HASHES = 16
PROPAGATION_ROUNDS = 8


def row_order(adjacency: Adjacency, num_cols: int, name: str) -> Tensor | None:
    """``[num_rows]`` int64 permutation for ``name``, or ``None`` for ``"none"``.

    Args:
        adjacency: the pattern.
        num_cols: number of columns.
        name: ``"degree"`` (longest rows first), ``"rcm"`` (reverse Cuthill–McKee, SciPy), ``"lsh"`` (MinHash
            signatures sorted) or ``"community"`` (label propagation, members beside each other).

    Raises:
        ValueError: ``"rcm"`` or ``"community"`` on a bipartite pattern.
        ImportError: ``"rcm"`` without SciPy.
    """
    if name == "none":
        return None
    if name in ("rcm", "community") and adjacency.num_rows != num_cols:
        raise ValueError(f"reorder={name!r} needs a square graph, got {adjacency.num_rows} rows and {num_cols} columns")
    return {"degree": _degree, "rcm": _rcm, "lsh": _lsh, "community": _community}[name](adjacency)


def _degree(adjacency: Adjacency) -> Tensor:
    return adjacency.rowptr.diff().sort(descending=True, stable=True)[1]


def _rcm(adjacency: Adjacency) -> Tensor:
    try:
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import reverse_cuthill_mckee
    except ImportError as error:
        raise ImportError("reorder='rcm' needs SciPy: pip install 'torch-tcgnn[scipy]'") from error
    if adjacency.num_rows == 0:  # SciPy asks for the largest of no degrees
        return adjacency.col.new_empty(0, dtype=torch.int64)
    rowptr, col = adjacency.rowptr.cpu().numpy(), adjacency.col.cpu().numpy()
    ones = torch.ones(adjacency.num_edges, dtype=torch.int8).numpy()
    pattern = csr_matrix((ones, col, rowptr), shape=(adjacency.num_rows,) * 2)
    return torch.from_numpy(reverse_cuthill_mckee(pattern).astype("int64")).to(adjacency.col.device)


def _lsh(adjacency: Adjacency) -> Tensor:
    """Sort rows by the MinHash signature of their neighbour sets: equal minima are likely where sets overlap."""
    row, col = adjacency.rows(), adjacency.col.long()
    prime = 2**31 - 1
    order = torch.arange(adjacency.num_rows, device=col.device)
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(1, prime, (NUM_HASHES, 2), generator=generator).tolist()
    for scale, shift in reversed(factors):  # least significant hash first: stable sorts make it lexicographic
        value = (col * scale + shift) % prime
        least = value.new_full((adjacency.num_rows,), prime).scatter_reduce(0, row, value, "amin")
        order = order[least[order].sort(stable=True)[1]]
    return order


def _community(adjacency: Adjacency) -> Tensor:
    """Group rows by label propagation; inside a community, rows that share their smallest neighbours are adjacent."""
    row, col = adjacency.rows(), adjacency.col.long()
    between = row != col  # with a self loop, a row's own label would outvote neighbours that still disagree
    row, col = row[between], col[between]
    label = torch.arange(adjacency.num_rows, device=col.device)
    for _ in range(PROPAGATION_ROUNDS):
        label = _most_common_label(row, label[col], label)
    order = _lsh(adjacency)
    return order[label[order].sort(stable=True)[1]]


def _most_common_label(row: Tensor, neighbour: Tensor, label: Tensor) -> Tensor:
    """One synchronous round: each row takes its neighbours' most common label (own counted; ties: the smallest)."""
    num_rows = label.shape[0]
    ids = torch.arange(num_rows, device=label.device)
    key = torch.cat([row, ids]) * num_rows + torch.cat([neighbour, label])
    distinct, votes = key.unique(return_counts=True)
    owner, candidate = distinct // num_rows, distinct % num_rows
    rank = votes * num_rows + (num_rows - 1 - candidate)
    best = rank.new_zeros(num_rows).scatter_reduce(0, owner, rank, "amax")
    return num_rows - 1 - best % num_rows
