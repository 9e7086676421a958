"""``spmm_extremum``: maximum or minimum of neighbours' (weighted) features, and which entry attained it.

The derivative flows to the attaining entry only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..adjacency import Adjacency
from ..kernels.cpu import extremum as cpu
from .library import LIBRARY, NAMESPACE
from .plain import Structure, needs_grad

LIBRARY.define("spmm_extremum(Tensor[] adj, Tensor x, Tensor? weight, bool largest) -> (Tensor, Tensor)")


def spmm_extremum(adj: Structure, x: Tensor, weight: Tensor | None, largest: bool) -> tuple[Tensor, Tensor]:
    """The op on a tensor list, or the same past the dispatcher on an adjacency (see ``plain``)."""
    if isinstance(adj, Adjacency):
        return _autograd(adj, x, weight, largest)
    return torch.ops.torch_tcgnn.spmm_extremum(adj, x, weight, largest)


class Extremum(torch.autograd.Function):
    """The derivative."""

    @staticmethod
    def forward(ctx: Any, adj: Structure, x: Tensor, weight: Tensor | None, largest: bool) -> tuple[Tensor, Tensor]:
        out, arg = _below(adj, x, weight, largest)
        ctx.mark_non_differentiable(arg)
        ctx.adj = adj
        ctx.save_for_backward(arg, x, weight)
        return out, arg

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad_outputs[0]
        adjacency = ctx.adj if isinstance(ctx.adj, Adjacency) else Adjacency.unpack(ctx.adj)
        arg, x, weight = ctx.saved_tensors
        _, needs_x, needs_weight, _ = ctx.needs_input_grad
        entry = arg.clamp(min=0)
        grad = torch.where(arg >= 0, grad, 0.0)
        if adjacency.num_edges == 0:
            return None, torch.zeros_like(x), None if weight is None else torch.zeros_like(weight), None
        source = adjacency.col.long()[entry]
        edge = entry if adjacency.edge.numel() == 0 else adjacency.edge.long()[entry]
        grad_x = grad_weight = None
        if needs_x:
            share = grad if weight is None else grad * _at_edge(weight, edge)
            grad_x = torch.zeros_like(x).scatter_add(0, source, share.to(x.dtype))
        if needs_weight and weight is not None:
            share = (grad * x.gather(0, source)).to(weight.dtype)
            grad_weight = _to_edges(share, edge, weight)
        return None, grad_x, grad_weight, None


def _autograd(adj: Structure, x: Tensor, weight: Tensor | None, largest: bool) -> tuple[Tensor, Tensor]:
    run = Extremum.apply if needs_grad(x, weight) else _below
    return run(adj, x, weight, largest)


def _below(adj: Structure, x: Tensor, weight: Tensor | None, largest: bool) -> tuple[Tensor, Tensor]:
    if isinstance(adj, Adjacency):
        return _kernel(adj, x, weight, largest)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.torch_tcgnn.spmm_extremum(adj, x, weight, largest)


def _kernel(adjacency: Adjacency, x: Tensor, weight: Tensor | None, largest: bool) -> tuple[Tensor, Tensor]:
    if x.is_cuda:
        from ..kernels import choose

        return choose.spmm_extremum(adjacency, x, weight, largest)
    return cpu.spmm_extremum(adjacency, x, weight, largest)


def _dispatched(adj: list[Tensor], x: Tensor, weight: Tensor | None, largest: bool) -> tuple[Tensor, Tensor]:
    return _kernel(Adjacency.unpack(adj), x, weight, largest)


LIBRARY.impl("spmm_extremum", _autograd, "Autograd")
LIBRARY.impl("spmm_extremum", _dispatched, "CPU")
LIBRARY.impl("spmm_extremum", _dispatched, "CUDA")


@torch.library.register_fake(f"{NAMESPACE}::spmm_extremum", lib=LIBRARY)
def _fake(adj: list[Tensor], x: Tensor, weight: Tensor | None, largest: bool) -> tuple[Tensor, Tensor]:
    shape = (adj[0].shape[0] - 1, *x.shape[1:])
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


def _to_edges(share: Tensor, edge: Tensor, weight: Tensor) -> Tensor:
    """Sums of the output elements' shares at the edges they come from, in the shape of ``weight``."""
    if weight.dim() == 1:
        return torch.zeros_like(weight).index_add(0, edge.reshape(-1), share.reshape(-1))
    heads = weight.shape[1]
    head = torch.arange(heads, device=edge.device).view(1, heads, 1).expand_as(edge)
    place = (edge * heads + head).reshape(-1)
    return torch.zeros_like(weight).view(-1).index_add(0, place, share.reshape(-1)).view_as(weight)


def _at_edge(weight: Tensor, edge: Tensor) -> Tensor:
    """Weight of the attaining edge for each output element."""
    if weight.dim() == 1:
        return weight[edge]
    head = torch.arange(weight.shape[1], device=weight.device).view(1, -1, 1)
    return weight[edge, head]
