"""``spmm(adj, adj_t, x, weight, precision)``: sum of neighbours' features, ``A @ X``.

``d/dx``: the same sum over the transposed graph; ``d/dweight``: SDDMM of the output gradient and ``x``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..adjacency import Adjacency
from ..kernels.cpu import spmm as cpu
from .library import LIBRARY, NAMESPACE
from .plain import Structure, needs_grad

LIBRARY.define("spmm(Tensor[] adj, Tensor[] adj_t, Tensor x, Tensor? weight, str precision) -> Tensor")


def spmm(adj: Structure, adj_t: Structure, x: Tensor, weight: Tensor | None, precision: str) -> Tensor:
    """The op on tensor lists, or the same past the dispatcher on adjacencies (see ``plain``)."""
    if isinstance(adj, Adjacency):
        return _autograd(adj, adj_t, x, weight, precision)
    return torch.ops.torch_tcgnn.spmm(adj, adj_t, x, weight, precision)


class SpMM(torch.autograd.Function):
    """The derivative; ``adj_t`` may be empty where no gradient will be asked for."""

    @staticmethod
    def forward(
        ctx: Any, adj: Structure, adj_t: Structure, x: Tensor, weight: Tensor | None, precision: str
    ) -> Tensor:
        ctx.structure = adj, adj_t, precision
        ctx.save_for_backward(x, weight)
        return _below_autograd(adj, adj_t, x, weight, precision)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from .sddmm import sddmm

        adj, adj_t, precision = ctx.structure
        x, weight = ctx.saved_tensors
        _, _, needs_x, needs_weight, _ = ctx.needs_input_grad
        grad_x = spmm(adj_t, adj, grad, weight, precision) if needs_x else None
        grad_weight = sddmm(adj, adj_t, grad, x, precision).to(weight.dtype) if needs_weight else None
        return None, None, grad_x, grad_weight, None


def _autograd(adj: Structure, adj_t: Structure, x: Tensor, weight: Tensor | None, precision: str) -> Tensor:
    run = SpMM.apply if needs_grad(x, weight) else _below_autograd
    return run(adj, adj_t, x, weight, precision)


def _below_autograd(adj: Structure, adj_t: Structure, x: Tensor, weight: Tensor | None, precision: str) -> Tensor:
    if isinstance(adj, Adjacency):
        return _kernel(adj, x, weight, precision)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.torch_tcgnn.spmm(adj, adj_t, x, weight, precision)


def _kernel(adjacency: Adjacency, x: Tensor, weight: Tensor | None, precision: str) -> Tensor:
    if x.is_cuda:
        from ..kernels import choose

        return choose.spmm(adjacency, x, weight, precision)
    return cpu.spmm(adjacency, x, weight)


def _dispatched(adj: list[Tensor], adj_t: list[Tensor], x: Tensor, weight: Tensor | None, precision: str) -> Tensor:
    return _kernel(Adjacency.unpack(adj), x, weight, precision)


LIBRARY.impl("spmm", _autograd, "Autograd")
LIBRARY.impl("spmm", _dispatched, "CPU")
LIBRARY.impl("spmm", _dispatched, "CUDA")


@torch.library.register_fake(f"{NAMESPACE}::spmm", lib=LIBRARY)
def _fake(adj: list[Tensor], adj_t: list[Tensor], x: Tensor, weight: Tensor | None, precision: str) -> Tensor:
    return x.new_empty(adj[0].shape[0] - 1, *x.shape[1:])
