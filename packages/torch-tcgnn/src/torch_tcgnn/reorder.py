"""Which rows share a tensor-core window.

A window gathers each distinct column of its rows once, so rows with common neighbours belong together. Only the
grouping changes: outputs are written to their own rows, and columns are never renumbered.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .adjacency import Adjacency
from .bitblock import WIDTH
from .community import community_order
from .cost import TYPICAL_WIDTH, Work, rates_on
from .window_counts import vectors_per_window

REORDERS = ("none", "degree", "rcm", "lsh", "community")
NUM_HASHES = 16
LEAST_GAIN = 0.03
"""Share of the predicted time that an order must save to be used."""


def check_order(name: str, num_rows: int, num_cols: int) -> None:
    """Raise ValueError where no pattern of this shape has the order ``name``."""
    if name in ("rcm", "community") and num_rows != num_cols:
        raise ValueError(f"reorder={name!r} needs a square graph, got {num_rows} rows and {num_cols} columns")


def useful_order(adjacency: Adjacency, num_cols: int, name: str) -> Tensor | None:
    """The order ``name`` where it pays, else ``None``.

    It pays where it saves :data:`LEAST_GAIN` of the predicted time of the tensor-core product with 128 float32
    features; arguments and errors as :func:`row_order`.
    """
    order = row_order(adjacency, num_cols, name)
    return order if order is not None and pays(adjacency, num_cols, order) else None


def pays(adjacency: Adjacency, num_cols: int, order: Tensor) -> bool:
    """Whether :func:`useful_order` keeps ``order`` (``[num_rows]`` integer)."""
    as_they_are, ordered = (_predicted_us(adjacency, num_cols, rows) for rows in (None, order))
    return ordered <= (1 - LEAST_GAIN) * as_they_are


def _predicted_us(adjacency: Adjacency, num_cols: int, order: Tensor | None) -> float:
    vectors = vectors_per_window(adjacency, num_cols, row_order=order)
    work = Work(windows=vectors.shape[0], blocks=int(((vectors + WIDTH - 1) // WIDTH).sum()))
    rates = rates_on(adjacency.col.device, torch.float32)
    return rates.predict_us(work, TYPICAL_WIDTH * torch.float32.itemsize)


def row_order(adjacency: Adjacency, num_cols: int, name: str) -> Tensor | None:
    """``[num_rows]`` int64 permutation for ``name``, or ``None`` for ``"none"``.

    Args:
        adjacency: the pattern.
        num_cols: number of columns.
        name: ``"degree"`` (longest rows first), ``"rcm"`` (reverse Cuthill–McKee, SciPy), ``"lsh"`` (MinHash
            signatures sorted) or ``"community"`` (communities by modularity, in them by common neighbours).

    Raises:
        ValueError: see :func:`check_order`.
        ImportError: ``"rcm"`` without SciPy.
    """
    if name == "none":
        return None
    check_order(name, adjacency.num_rows, num_cols)
    if name == "community":
        return community_order(adjacency, num_cols, _lsh(adjacency))
    return {"degree": _degree, "rcm": _rcm, "lsh": _lsh}[name](adjacency)


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
