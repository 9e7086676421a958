"""``segment_sum`` (edges to rows) and ``gather_rows`` (rows to edges): each is the other's derivative.

Edge tensors are in input edge order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..adjacency import Adjacency
from ..kernels.cpu import spmm as cpu
from .library import LIBRARY, NAMESPACE
from .plain import Structure, needs_grad

LIBRARY.define("segment_sum(Tensor[] adj, Tensor values) -> Tensor")
LIBRARY.define("gather_rows(Tensor[] adj, Tensor rows) -> Tensor")


def segment_sum(adj: Structure, values: Tensor) -> Tensor:
    """The op on a tensor list, or the same past the dispatcher on an adjacency (see ``plain``)."""
    if isinstance(adj, Adjacency):
        return _autograd_sum(adj, values)
    return torch.ops.torch_tcgnn.segment_sum(adj, values)


def gather_rows(adj: Structure, rows: Tensor) -> Tensor:
    """The op on a tensor list, or the same past the dispatcher on an adjacency (see ``plain``)."""
    if isinstance(adj, Adjacency):
        return _autograd_gather(adj, rows)
    return torch.ops.torch_tcgnn.gather_rows(adj, rows)


class SegmentSum(torch.autograd.Function):
    """The derivative."""

    @staticmethod
    def forward(ctx: Any, adj: Structure, values: Tensor) -> Tensor:
        ctx.adj = adj
        return _below_sum(adj, values)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, Tensor]:
        (grad,) = grad_outputs
        return None, gather_rows(ctx.adj, grad)


class GatherRows(torch.autograd.Function):
    """The derivative."""

    @staticmethod
    def forward(ctx: Any, adj: Structure, rows: Tensor) -> Tensor:
        ctx.adj = adj
        return _below_gather(adj, rows)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, Tensor]:
        (grad,) = grad_outputs
        return None, segment_sum(ctx.adj, grad)


def _autograd_sum(adj: Structure, values: Tensor) -> Tensor:
    run = SegmentSum.apply if needs_grad(values) else _below_sum
    return run(adj, values)


def _autograd_gather(adj: Structure, rows: Tensor) -> Tensor:
    run = GatherRows.apply if needs_grad(rows) else _below_gather
    return run(adj, rows)


def _below_sum(adj: Structure, values: Tensor) -> Tensor:
    if isinstance(adj, Adjacency):
        return _kernel_sum(adj, values)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.torch_tcgnn.segment_sum(adj, values)


def _below_gather(adj: Structure, rows: Tensor) -> Tensor:
    if isinstance(adj, Adjacency):
        return _kernel_gather(adj, rows)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.torch_tcgnn.gather_rows(adj, rows)


def _kernel_sum(adjacency: Adjacency, values: Tensor) -> Tensor:
    if values.is_cuda:
        from ..kernels import choose

        return choose.segment_sum(adjacency, values)
    return cpu.segment_sum(adjacency, values)


def _kernel_gather(adjacency: Adjacency, rows: Tensor) -> Tensor:
    return adjacency.to_edges(rows.index_select(0, adjacency.rows()))


def _dispatched_sum(adj: list[Tensor], values: Tensor) -> Tensor:
    return _kernel_sum(Adjacency.unpack(adj), values)


def _dispatched_gather(adj: list[Tensor], rows: Tensor) -> Tensor:
    return _kernel_gather(Adjacency.unpack(adj), rows)


LIBRARY.impl("segment_sum", _autograd_sum, "Autograd")
LIBRARY.impl("segment_sum", _dispatched_sum, "CPU")
LIBRARY.impl("segment_sum", _dispatched_sum, "CUDA")
LIBRARY.impl("gather_rows", _autograd_gather, "Autograd")
LIBRARY.impl("gather_rows", _dispatched_gather, "CompositeExplicitAutograd")


@torch.library.register_fake(f"{NAMESPACE}::segment_sum", lib=LIBRARY)
def _fake_sum(adj: list[Tensor], values: Tensor) -> Tensor:
    return values.new_empty(adj[0].shape[0] - 1, *values.shape[1:])


@torch.library.register_fake(f"{NAMESPACE}::gather_rows", lib=LIBRARY)
def _fake_gather(adj: list[Tensor], rows: Tensor) -> Tensor:
    return rows.new_empty(adj[1].shape[0], *rows.shape[1:])
