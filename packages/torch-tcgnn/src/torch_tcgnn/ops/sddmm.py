"""``sddmm(adj, adj_t, a, b, precision)``: ``<a_i, b_j>`` at every edge ``j → i``, in input edge order.

``d/da``: SpMM of ``b`` weighted by the edge gradient; ``d/db``: the same over the transposed graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..adjacency import Adjacency
from ..kernels.cpu import sddmm as cpu
from .library import LIBRARY, NAMESPACE
from .plain import Structure, needs_grad
from .spmm import spmm

LIBRARY.define("sddmm(Tensor[] adj, Tensor[] adj_t, Tensor a, Tensor b, str precision) -> Tensor")


def sddmm(adj: Structure, adj_t: Structure, a: Tensor, b: Tensor, precision: str) -> Tensor:
    """The op on tensor lists, or the same past the dispatcher on adjacencies (see ``plain``)."""
    if isinstance(adj, Adjacency):
        return _autograd(adj, adj_t, a, b, precision)
    return torch.ops.torch_tcgnn.sddmm(adj, adj_t, a, b, precision)


class SDDMM(torch.autograd.Function):
    """The derivative; ``adj_t`` may be empty where no gradient will be asked for."""

    @staticmethod
    def forward(ctx: Any, adj: Structure, adj_t: Structure, a: Tensor, b: Tensor, precision: str) -> Tensor:
        ctx.structure = adj, adj_t, precision
        ctx.save_for_backward(a, b)
        return _below_autograd(adj, adj_t, a, b, precision)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        adj, adj_t, precision = ctx.structure
        a, b = ctx.saved_tensors
        _, _, needs_a, needs_b, _ = ctx.needs_input_grad
        grad_a = spmm(adj, adj_t, b, grad, precision) if needs_a else None
        grad_b = spmm(adj_t, adj, a, grad, precision) if needs_b else None
        return None, None, grad_a, grad_b, None


def _autograd(adj: Structure, adj_t: Structure, a: Tensor, b: Tensor, precision: str) -> Tensor:
    run = SDDMM.apply if needs_grad(a, b) else _below_autograd
    return run(adj, adj_t, a, b, precision)


def _below_autograd(adj: Structure, adj_t: Structure, a: Tensor, b: Tensor, precision: str) -> Tensor:
    if isinstance(adj, Adjacency):
        return _kernel(adj, a, b, precision)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.torch_tcgnn.sddmm(adj, adj_t, a, b, precision)


def _kernel(adjacency: Adjacency, a: Tensor, b: Tensor, precision: str) -> Tensor:
    if a.is_cuda:
        from ..kernels import choose

        return choose.sddmm(adjacency, a, b, precision)
    return cpu.sddmm(adjacency, a, b)


def _dispatched(adj: list[Tensor], adj_t: list[Tensor], a: Tensor, b: Tensor, precision: str) -> Tensor:
    return _kernel(Adjacency.unpack(adj), a, b, precision)


LIBRARY.impl("sddmm", _autograd, "Autograd")
LIBRARY.impl("sddmm", _dispatched, "CPU")
LIBRARY.impl("sddmm", _dispatched, "CUDA")


@torch.library.register_fake(f"{NAMESPACE}::sddmm", lib=LIBRARY)
def _fake(adj: list[Tensor], adj_t: list[Tensor], a: Tensor, b: Tensor, precision: str) -> Tensor:
    return a.new_empty(adj[1].shape[0], *a.shape[1:-1])
