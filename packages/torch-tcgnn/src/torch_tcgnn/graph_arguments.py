"""What a graph may be built from: each error names the argument, what it got and what is allowed."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

LARGEST_ID = 2**31 - 1
"""First id that int32 columns cannot hold beside a count of nodes in int32."""


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise where ``value`` is none of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_tensor(name: str, value: object) -> None:
    """Raise where ``value`` is no tensor, or a sparse one."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a Tensor, got {type(value).__name__}")
    if value.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense Tensor, got layout {value.layout}: use .to_dense()")


def is_count(value: object) -> bool:
    """Whether ``value`` is an integer, no truth value: Python's, NumPy's, or a compiler's."""
    return isinstance(value, (int, torch.SymInt, Integral)) and not isinstance(value, bool)


def check_count(name: str, value: Any, *, least: int) -> None:
    """Raise where ``value`` is no integer of at least ``least``."""
    if not is_count(value):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_number(name: str, value: Any) -> None:
    """Raise where ``value`` is no real number: Python's, NumPy's, or a compiler's."""
    if isinstance(value, bool) or not isinstance(value, (float, int, torch.SymFloat, torch.SymInt, Real)):
        got = repr(value) if isinstance(value, str) else type(value).__name__
        raise TypeError(f"{name} must be a number, got {got}")


def check_finite(name: str, value: Any) -> None:
    """Raise where ``value`` is no finite real number."""
    check_number(name, value)
    if not float("-inf") < value < float("inf"):  # NaN fails too
        raise ValueError(f"{name} must be finite, got {value}")


def check_probability(name: str, value: Any) -> None:
    """Raise where ``value`` is no number in ``[0, 1]``."""
    check_number(name, value)
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be a probability in [0, 1], got {value}")


def check_sizes(name: str, sizes: tuple[int, ...]) -> tuple[int, int]:
    """Raise where ``sizes`` are not two counts; gives them back."""
    if len(sizes) != 2:
        raise ValueError(f"{name} must be two counts, got {sizes}")
    for n in sizes:
        if not is_count(n):
            raise TypeError(f"{name} must be a count or a tuple of two, got {n!r}")
        if not 0 <= n < 2**31:
            raise ValueError(f"{name} must lie in [0, 2**31) (ids are int32), got {n}")
    return sizes[0], sizes[1]


def largest_id_plus_one(edge_index: Tensor) -> int:
    """Number of nodes where nobody gave one.

    Raises:
        ValueError: ids that are negative, or too large for int32.
    """
    if edge_index.numel() == 0:
        return 0
    low, high = torch.stack(edge_index.aminmax()).tolist()
    if low < 0 or high >= LARGEST_ID:
        check_ids(edge_index, (LARGEST_ID, LARGEST_ID))
    return high + 1


def check_edge_index(edge_index: Tensor) -> None:
    """Raise where ``edge_index`` is not an integer tensor ``[2, E]``."""
    check_tensor("edge_index", edge_index)
    if edge_index.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"edge_index must be int32 or int64, got {edge_index.dtype}")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"edge_index must have shape [2, num_edges], got {tuple(edge_index.shape)}")


def as_device(device: object) -> torch.device:
    """The device that a name, a number or a device stands for.

    Raises:
        TypeError: something else.
    """
    if not isinstance(device, str | int | torch.device):
        raise TypeError(f"device must be a torch.device or its name, got {type(device).__name__}")
    return torch.device(device)


def check_state(state: object, names: tuple[str, ...]) -> None:
    """Raise where ``state`` is no dictionary that has ``names``."""
    if not isinstance(state, dict):
        raise TypeError(f"state must be a dictionary that to_dict wrote, got {type(state).__name__}")
    missing = [name for name in names if name not in state]
    if missing:
        raise ValueError(f"state lacks {', '.join(missing)}, got {', '.join(map(str, state)) or 'nothing'}")


def check_stored(state: dict[str, Any]) -> None:
    """Raise where stored rows are none: kernels follow their numbers into memory, and a file may come from anywhere."""
    rowptr, col, edge, num_cols = (state[name] for name in ("rowptr", "col", "edge", "num_cols"))
    check_csr(rowptr, col, None)
    check_tensor("edge", edge)
    check_sizes("num_cols", (num_cols, num_cols))
    if edge.dtype not in (torch.int32, torch.int64) or edge.shape not in ((0,), col.shape) or edge.device != col.device:
        raise ValueError(f"edge must be empty or hold integers as col does, got {edge.dtype} {tuple(edge.shape)}")
    check_edge_weight("weight", state["weight"], col.shape[0], col.device)
    if not all(type(t) is Tensor and not t.is_meta for t in (rowptr, col, edge)):
        return  # traced: no values
    check_rowptr(rowptr, col)
    for name, ids, end in (("col", col, num_cols), ("edge", edge, col.shape[0])):
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < end:
            raise ValueError(f"{name} must lie in [0, {end}), got {int(ids.min())} to {int(ids.max())}")


def check_csr(rowptr: Tensor, col: Tensor, size: object) -> None:
    """Raise where compressed rows are no integer vectors on one device, or ``size`` is no pair."""
    for name, t in (("rowptr", rowptr), ("col", col)):
        check_tensor(name, t)
    if rowptr.device != col.device:
        raise ValueError(f"rowptr is on {rowptr.device}, but col is on {col.device}: move one of them with .to()")
    for name, t in (("rowptr", rowptr), ("col", col)):
        if t.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name} must be int32 or int64, got {t.dtype}")
        if t.dim() != 1:
            raise ValueError(f"{name} must have one dimension, got shape {tuple(t.shape)}")
    if rowptr.shape[0] == 0:
        raise ValueError("rowptr must have num_rows + 1 elements, got none")
    if size is not None and not isinstance(size, tuple | list):
        raise TypeError(f"size must be (num_rows, num_cols), got {size!r}")


def check_rowptr(rowptr: Tensor, col: Tensor) -> None:
    """Raise where ``rowptr``, one of :func:`check_csr`'s, is not a monotone pointer from 0 to ``len(col)``."""
    if int(rowptr[0]) != 0:
        raise ValueError(f"rowptr must start at 0, got {int(rowptr[0])}")
    drop = (rowptr.diff() < 0).nonzero()
    if drop.numel():
        at = int(drop[0])
        raise ValueError(f"rowptr must not decrease, got {int(rowptr[at])} then {int(rowptr[at + 1])} at row {at}")
    if int(rowptr[-1]) != col.shape[0]:
        raise ValueError(f"rowptr must end at the number of edges {col.shape[0]}, got {int(rowptr[-1])}")


def check_ids(edge_index: Tensor, sizes: tuple[int | None, int | None], name: str = "edge_index") -> None:
    """Raise where a row of ``edge_index`` holds an id outside ``[0, its size)``; names the first such edge.

    A row whose size is ``None`` is not looked at. One synchronisation with the device.

    A compiled program asserts the same when it runs, without waiting: on a CPU as a RuntimeError, on a GPU as the
    device's assertion, instead of reading memory that is not there.
    """
    rows = [(edge_index[which], size) for which, size in enumerate(sizes) if size is not None]
    if torch.compiler.is_compiling():
        for ids, size in rows:
            inside = ((ids >= 0) & (ids < size)).all()
            torch.ops.aten._assert_async.msg(inside, f"{name} holds a node outside [0, num_nodes)")
        return
    if not rows:
        return
    if edge_index.is_meta:
        raise ValueError(f"{name} is on meta, where ids have no values: move it with .to(), or pass validate=False")
    if edge_index.shape[1] == 0:
        return
    ends = torch.stack([end for ids, _ in rows for end in ids.aminmax()]).tolist()
    for (ids, size), low, high in zip(rows, ends[::2], ends[1::2]):
        if low < 0 or high >= size:
            bad = int(((ids < 0) | (ids >= size)).nonzero()[0])
            pair = tuple(edge_index[:, bad].tolist())
            raise ValueError(f"{name} holds node {int(ids[bad])} in edge {bad} {pair}, but ids must lie in [0, {size})")


def check_edge_weight(name: str, weight: Tensor | None, num_edges: int, device: torch.device) -> None:
    """Raise where ``weight`` is neither ``None`` nor floating point ``[num_edges(, H)]`` on ``device``."""
    if weight is None:
        return
    check_tensor(name, weight)
    if not weight.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {weight.dtype}")
    if weight.dim() not in (1, 2) or weight.shape[0] != num_edges:
        raise ValueError(f"{name} must have shape [{num_edges}] or [{num_edges}, H], got {tuple(weight.shape)}")
    if weight.device != device:
        raise ValueError(f"{name} is on {weight.device}, but the graph is on {device}: move one of them with .to()")
