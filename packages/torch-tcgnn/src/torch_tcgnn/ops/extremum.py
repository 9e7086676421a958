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

NAME = f"{NAMESPACE}::spmm_extremum"
LIBRARY.define("spmm_extremum(Tensor[] adj, Tensor x, Tensor? weight, bool largest) -> (Tensor, Tensor)")


@torch.library.impl(LIBRARY, "spmm_extremum", "CPU")
def _cpu(adj: list[Tensor], x: Tensor, weight: Tensor | None, largest: bool) -> tuple[Tensor, Tensor]:
    return cpu.spmm_extremum(Adjacency.unpack(adj), x, weight, largest)


@torch.library.impl(LIBRARY, "spmm_extremum", "CUDA")
def _cuda(adj: list[Tensor], x: Tensor, weight: Tensor | None, largest: bool) -> tuple[Tensor, Tensor]:
    from ..kernels import choose

    return choose.spmm_extremum(Adjacency.unpack(adj), x, weight, largest)


@torch.library.register_fake(NAME, lib=LIBRARY)
def _fake(adj: list[Tensor], x: Tensor, weight: Tensor | None, largest: bool) -> tuple[Tensor, Tensor]:
    shape = (adj[0].shape[0] - 1, *x.shape[1:])
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


def _save(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    adj, x, weight, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.num_adj = len(adj)
    ctx.save_for_backward(*adj, output[1], x, *([] if weight is None else [weight]))


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple:
    saved = list(ctx.saved_tensors)
    adjacency = Adjacency.unpack(saved[: ctx.num_adj])
    arg, x, *rest = saved[ctx.num_adj :]
    weight = rest[0] if rest else None
    _, needs_x, needs_weight, _ = ctx.needs_input_grad
    attained = arg >= 0
    entry = arg.clamp(min=0)
    grad = torch.where(attained, grad, 0.0)
    if adjacency.num_edges == 0:
        zero_weight = None if weight is None else torch.zeros_like(weight)
        return [None] * ctx.num_adj, torch.zeros_like(x), zero_weight, None
    source = adjacency.col.long()[entry]
    edge = entry if adjacency.edge.numel() == 0 else adjacency.edge.long()[entry]
    grad_x = grad_weight = None
    if needs_x:
        share = grad if weight is None else grad * _at_edge(weight, edge)
        grad_x = torch.zeros_like(x).scatter_add(0, source, share.to(x.dtype))
    if needs_weight and weight is not None:
        share = (grad * x.gather(0, source)).to(weight.dtype)
        if weight.dim() == 1:
            grad_weight = torch.zeros_like(weight).index_add(0, edge.reshape(-1), share.reshape(-1))
        else:
            heads = weight.shape[1]
            head = torch.arange(heads, device=edge.device).view(1, heads, 1).expand_as(edge)
            flat = torch.zeros_like(weight).view(-1)
            place = (edge * heads + head).reshape(-1)
            grad_weight = flat.index_add(0, place, share.reshape(-1)).view_as(weight)
    return [None] * ctx.num_adj, grad_x, grad_weight, None


def _at_edge(weight: Tensor, edge: Tensor) -> Tensor:
    """Weight of the attaining edge for each output element."""
    if weight.dim() == 1:
        return weight[edge]
    head = torch.arange(weight.shape[1], device=weight.device).view(1, -1, 1)
    return weight[edge, head]


torch.library.register_autograd(NAME, _backward, setup_context=_save, lib=LIBRARY)
