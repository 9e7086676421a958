"""What a graph may be built from: each error names the argument, what it got and what is allowed."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise where ``value`` is none of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_sizes(name: str, sizes: tuple[int, ...]) -> tuple[int, int]:
    """Raise where ``sizes`` are not two counts; gives them back."""
    if len(sizes) != 2:
        raise ValueError(f"{name} must be two counts, got {sizes}")
    for n in sizes:
        if not isinstance(n, (int, torch.SymInt, Integral)):
            raise TypeError(f"{name} must be a count or a tuple of two, got {n!r}")
        if not 0 <= n < 2**31:
            raise ValueError(f"{name} must lie in [0, 2**31) (ids are int32), got {n}")
    return sizes[0], sizes[1]


def check_edge_index(edge_index: Tensor) -> None:
    """Raise where ``edge_index`` is not an integer tensor ``[2, E]``."""
    if not isinstance(edge_index, Tensor):
        raise TypeError(f"edge_index must be a Tensor, got {type(edge_index).__name__}")
    if edge_index.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"edge_index must be int32 or int64, got {edge_index.dtype}")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"edge_index must have shape [2, num_edges], got {tuple(edge_index.shape)}")


def check_rowptr(rowptr: Tensor, col: Tensor) -> None:
    """Raise where ``rowptr`` is not a monotone pointer from 0 to ``len(col)``."""
    for name, t in (("rowptr", rowptr), ("col", col)):
        if t.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name} must be int32 or int64, got {t.dtype}")
        if t.dim() != 1:
            raise ValueError(f"{name} must have one dimension, got shape {tuple(t.shape)}")
    if rowptr.numel() == 0:
        raise ValueError("rowptr must have num_rows + 1 elements, got none")
    if int(rowptr[0]) != 0:
        raise ValueError(f"rowptr must start at 0, got {int(rowptr[0])}")
    drop = (rowptr.diff() < 0).nonzero()
    if drop.numel():
        at = int(drop[0])
        raise ValueError(f"rowptr must not decrease, got {int(rowptr[at])} then {int(rowptr[at + 1])} at row {at}")
    if int(rowptr[-1]) != col.shape[0]:
        raise ValueError(f"rowptr must end at the number of edges {col.shape[0]}, got {int(rowptr[-1])}")


def check_ids(edge_index: Tensor, which: int, size: int, name: str = "edge_index") -> None:
    """Raise where row ``which`` of ``edge_index`` holds an id outside ``[0, size)``; names the first such edge."""
    ids = edge_index[which]
    if ids.numel() == 0 or (int(ids.min()) >= 0 and int(ids.max()) < size):
        return
    bad = int(((ids < 0) | (ids >= size)).nonzero()[0])
    pair = tuple(edge_index[:, bad].tolist())
    raise ValueError(f"{name} holds node {int(ids[bad])} in edge {bad} {pair}, but ids must lie in [0, {size})")


def check_edge_weight(name: str, weight: Tensor | None, num_edges: int, device: torch.device) -> None:
    """Raise where ``weight`` is neither ``None`` nor floating point ``[num_edges(, H)]`` on ``device``."""
    if weight is None:
        return
    if not weight.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {weight.dtype}")
    if weight.dim() not in (1, 2) or weight.shape[0] != num_edges:
        raise ValueError(f"{name} must have shape [{num_edges}] or [{num_edges}, H], got {tuple(weight.shape)}")
    if weight.device != device:
        raise ValueError(f"{name} is on {weight.device}, but the graph is on {device}: move one of them with .to()")
