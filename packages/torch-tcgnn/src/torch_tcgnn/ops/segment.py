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

LIBRARY.define("segment_sum(Tensor[] adj, Tensor values) -> Tensor")
LIBRARY.define("gather_rows(Tensor[] adj, Tensor rows) -> Tensor")


@torch.library.impl(LIBRARY, "segment_sum", "CPU")
def _segment_sum_cpu(adj: list[Tensor], values: Tensor) -> Tensor:
    return cpu.segment_sum(Adjacency.unpack(adj), values)


@torch.library.impl(LIBRARY, "segment_sum", "CUDA")
def _segment_sum_cuda(adj: list[Tensor], values: Tensor) -> Tensor:
    from ..kernels import choose

    return choose.segment_sum(Adjacency.unpack(adj), values)


@torch.library.register_fake(f"{NAMESPACE}::segment_sum", lib=LIBRARY)
def _segment_sum_fake(adj: list[Tensor], values: Tensor) -> Tensor:
    return values.new_empty(adj[0].shape[0] - 1, *values.shape[1:])


@torch.library.impl(LIBRARY, "gather_rows", "CompositeExplicitAutograd")
def _gather_rows(adj: list[Tensor], rows: Tensor) -> Tensor:
    adjacency = Adjacency.unpack(adj)
    return adjacency.to_edges(rows.index_select(0, adjacency.rows()))


@torch.library.register_fake(f"{NAMESPACE}::gather_rows", lib=LIBRARY)
def _gather_rows_fake(adj: list[Tensor], rows: Tensor) -> Tensor:
    return rows.new_empty(adj[1].shape[0], *rows.shape[1:])


def _save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[0])


def _segment_sum_backward(ctx: Any, grad: Tensor) -> tuple:
    adj = list(ctx.saved_tensors)
    return [None] * len(adj), torch.ops.torch_tcgnn.gather_rows(adj, grad)


def _gather_rows_backward(ctx: Any, grad: Tensor) -> tuple:
    adj = list(ctx.saved_tensors)
    return [None] * len(adj), torch.ops.torch_tcgnn.segment_sum(adj, grad)


torch.library.register_autograd(
    f"{NAMESPACE}::segment_sum", _segment_sum_backward, setup_context=_save, lib=LIBRARY
)
torch.library.register_autograd(
    f"{NAMESPACE}::gather_rows", _gather_rows_backward, setup_context=_save, lib=LIBRARY
)
