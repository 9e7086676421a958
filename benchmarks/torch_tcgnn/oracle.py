"""What the cases must compute, in float64, a few feature columns at a time so that ``[E, F]`` never exists whole."""

import torch
from torch import Tensor

from benchmarks.torch_tcgnn.tasks import Task

SLAB = 16

__all__ = ["sddmm", "spmm", "spmm_backward"]


def _aggregate(task: Task, x: Tensor, into: int) -> Tensor:
    """Sum over edges of weight · x at the other end, gathered at end ``into`` (1: targets, 0: sources)."""
    out = x.new_zeros(x.shape, dtype=torch.float64)
    weight = 1.0 if task.weight is None else task.weight.double().unsqueeze(1)
    for start in range(0, x.shape[1], SLAB):
        slab = x[:, start : start + SLAB].double()
        message = slab[task.edge_index[1 - into]] * weight
        out[:, start : start + SLAB].index_add_(0, task.edge_index[into], message)
    return out


def spmm(task: Task) -> Tensor:
    """``A · x``."""
    return _aggregate(task, task.x, 1)


def spmm_backward(task: Task) -> tuple[Tensor, Tensor]:
    """``A · x`` and ``Aᵀ · grad``."""
    return _aggregate(task, task.x, 1), _aggregate(task, task.grad, 0)


def sddmm(task: Task) -> Tensor:
    """``<x[target], y[source]>`` of every edge."""
    out = task.x.new_zeros(task.num_edges, dtype=torch.float64)
    for start in range(0, task.x.shape[1], SLAB):
        a, b = (operand[:, start : start + SLAB].double() for operand in (task.x, task.y))
        out += (a[task.edge_index[1]] * b[task.edge_index[0]]).sum(1)
    return out
