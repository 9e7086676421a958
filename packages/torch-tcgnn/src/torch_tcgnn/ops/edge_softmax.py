"""``edge_softmax``: softmax of edge logits over the edges that enter each row.

With ``y`` the result and ``g`` its gradient: ``dlogits = y · (g − Σ_row y·g)``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..adjacency import Adjacency
from ..kernels.cpu import edge_softmax as cpu
from .library import LIBRARY, NAMESPACE
from .plain import Structure, needs_grad
from .segment import gather_rows, segment_sum

LIBRARY.define("edge_softmax(Tensor[] adj, Tensor logits) -> Tensor")


def edge_softmax(adj: Structure, logits: Tensor) -> Tensor:
    """The op on a tensor list, or the same past the dispatcher on an adjacency (see ``plain``)."""
    if isinstance(adj, Adjacency):
        return _autograd(adj, logits)
    return torch.ops.torch_tcgnn.edge_softmax(adj, logits)


class EdgeSoftmax(torch.autograd.Function):
    """The derivative."""

    @staticmethod
    def forward(ctx: Any, adj: Structure, logits: Tensor) -> Tensor:
        y = _below(adj, logits)
        ctx.adj = adj
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, Tensor]:
        (grad,) = grad_outputs
        (y,) = ctx.saved_tensors
        product = y * grad
        return None, product - y * gather_rows(ctx.adj, segment_sum(ctx.adj, product))


def _autograd(adj: Structure, logits: Tensor) -> Tensor:
    run = EdgeSoftmax.apply if needs_grad(logits) else _below
    return run(adj, logits)


def _below(adj: Structure, logits: Tensor) -> Tensor:
    if isinstance(adj, Adjacency):
        return _kernel(adj, logits)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.torch_tcgnn.edge_softmax(adj, logits)


def _kernel(adjacency: Adjacency, logits: Tensor) -> Tensor:
    if logits.is_cuda:
        from ..kernels import choose

        return choose.edge_softmax(adjacency, logits)
    return cpu.edge_softmax(adjacency, logits)


def _dispatched(adj: list[Tensor], logits: Tensor) -> Tensor:
    return _kernel(Adjacency.unpack(adj), logits)


LIBRARY.impl("edge_softmax", _autograd, "Autograd")
LIBRARY.impl("edge_softmax", _dispatched, "CPU")
LIBRARY.impl("edge_softmax", _dispatched, "CUDA")


@torch.library.register_fake(f"{NAMESPACE}::edge_softmax", lib=LIBRARY)
def _fake(adj: list[Tensor], logits: Tensor) -> Tensor:
    return logits.new_empty(logits.shape)
