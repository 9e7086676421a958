"""``spmm`` (``A @ X``) and ``sddmm`` (``<a_i, b_j>`` at every edge): each is the other's derivative, to any order.

``spmm(adj, adj_t, x, weight, precision, out_dtype)``: ``d/dx`` is the same sum over the transposed graph, ``d/dweight``
SDDMM of the output gradient and ``x``. Where ``out_dtype`` makes float32 sums of 16-bit features, their gradient is
float32 too, is summed as such, and rounded last. ``sddmm(adj, adj_t, a, b, precision)``, in input edge order: ``d/da``
is SpMM of ``b`` weighted by the edge gradient, ``d/db`` the same over the transposed graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..adjacency import Adjacency
from ..kernels.cpu import sddmm as cpu_sddmm
from ..kernels.cpu import spmm as cpu_spmm
from .library import LIBRARY, NAMESPACE
from .plain import Structure, needs_grad

LIBRARY.define(
    "spmm(Tensor[] adj, Tensor[] adj_t, Tensor x, Tensor? weight, str precision, ScalarType? out_dtype=None) -> Tensor"
)


def spmm(
    adj: Structure,
    adj_t: Structure,
    x: Tensor,
    weight: Tensor | None,
    precision: str,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """The op on tensor lists, or the same past the dispatcher on adjacencies (see ``plain``)."""
    if isinstance(adj, Adjacency):
        return _autograd_spmm(adj, adj_t, x, weight, precision, out_dtype)
    return torch.ops.torch_tcgnn.spmm(adj, adj_t, x, weight, precision, out_dtype)


class SpMM(torch.autograd.Function):
    """The derivative; ``adj_t`` may be empty where no gradient will be asked for."""

    @staticmethod
    def forward(
        ctx: Any,
        adj: Structure,
        adj_t: Structure,
        x: Tensor,
        weight: Tensor | None,
        precision: str,
        out_dtype: torch.dtype | None,
    ) -> Tensor:
        ctx.structure = adj, adj_t, precision
        ctx.save_for_backward(x, weight)
        return _below_spmm(adj, adj_t, x, weight, precision, out_dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        adj, adj_t, precision = ctx.structure
        x, weight = ctx.saved_tensors
        _, _, needs_x, needs_weight, _, _ = ctx.needs_input_grad
        grad_x = spmm(adj_t, adj, grad, weight, precision).to(x.dtype) if needs_x else None
        grad_weight = None
        if needs_weight:
            grad_weight = sddmm(adj, adj_t, grad, x.to(grad.dtype), precision).to(weight.dtype)
        return None, None, grad_x, grad_weight, None, None


def _autograd_spmm(
    adj: Structure,
    adj_t: Structure,
    x: Tensor,
    weight: Tensor | None,
    precision: str,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    run = SpMM.apply if needs_grad(x, weight) else _below_spmm
    return run(adj, adj_t, x, weight, precision, out_dtype)


def _below_spmm(
    adj: Structure,
    adj_t: Structure,
    x: Tensor,
    weight: Tensor | None,
    precision: str,
    out_dtype: torch.dtype | None,
) -> Tensor:
    if isinstance(adj, Adjacency):
        return _kernel_spmm(adj, x, weight, precision, out_dtype)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.torch_tcgnn.spmm(adj, adj_t, x, weight, precision, out_dtype)


def _kernel_spmm(
    adjacency: Adjacency, x: Tensor, weight: Tensor | None, precision: str, out_dtype: torch.dtype | None
) -> Tensor:
    if x.is_cuda:
        from ..kernels import choose

        return choose.spmm(adjacency, x, weight, precision, out_dtype)
    return cpu_spmm.spmm(adjacency, x, weight, out_dtype)


def _dispatched_spmm(
    adj: list[Tensor],
    adj_t: list[Tensor],
    x: Tensor,
    weight: Tensor | None,
    precision: str,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    return _kernel_spmm(Adjacency.unpack(adj), x, weight, precision, out_dtype)


LIBRARY.impl("spmm", _autograd_spmm, "Autograd")
LIBRARY.impl("spmm", _dispatched_spmm, "CPU")
LIBRARY.impl("spmm", _dispatched_spmm, "CUDA")


@torch.library.register_fake(f"{NAMESPACE}::spmm", lib=LIBRARY)
def _fake_spmm(
    adj: list[Tensor],
    adj_t: list[Tensor],
    x: Tensor,
    weight: Tensor | None,
    precision: str,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    return x.new_empty((adj[0].shape[0] - 1, *x.shape[1:]), dtype=out_dtype)


LIBRARY.define("sddmm(Tensor[] adj, Tensor[] adj_t, Tensor a, Tensor b, str precision) -> Tensor")


def sddmm(adj: Structure, adj_t: Structure, a: Tensor, b: Tensor, precision: str) -> Tensor:
    """The op on tensor lists, or the same past the dispatcher on adjacencies (see ``plain``)."""
    if isinstance(adj, Adjacency):
        return _autograd_sddmm(adj, adj_t, a, b, precision)
    return torch.ops.torch_tcgnn.sddmm(adj, adj_t, a, b, precision)


class SDDMM(torch.autograd.Function):
    """The derivative; ``adj_t`` may be empty where no gradient will be asked for."""

    @staticmethod
    def forward(ctx: Any, adj: Structure, adj_t: Structure, a: Tensor, b: Tensor, precision: str) -> Tensor:
        ctx.structure = adj, adj_t, precision
        ctx.save_for_backward(a, b)
        return _below_sddmm(adj, adj_t, a, b, precision)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        adj, adj_t, precision = ctx.structure
        a, b = ctx.saved_tensors
        _, _, needs_a, needs_b, _ = ctx.needs_input_grad
        grad_a = spmm(adj, adj_t, b, grad, precision) if needs_a else None
        grad_b = spmm(adj_t, adj, a, grad, precision) if needs_b else None
        return None, None, grad_a, grad_b, None


def _autograd_sddmm(adj: Structure, adj_t: Structure, a: Tensor, b: Tensor, precision: str) -> Tensor:
    run = SDDMM.apply if needs_grad(a, b) else _below_sddmm
    return run(adj, adj_t, a, b, precision)


def _below_sddmm(adj: Structure, adj_t: Structure, a: Tensor, b: Tensor, precision: str) -> Tensor:
    if isinstance(adj, Adjacency):
        return _kernel_sddmm(adj, a, b, precision)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.torch_tcgnn.sddmm(adj, adj_t, a, b, precision)


def _kernel_sddmm(adjacency: Adjacency, a: Tensor, b: Tensor, precision: str) -> Tensor:
    if a.is_cuda:
        from ..kernels import choose

        return choose.sddmm(adjacency, a, b, precision)
    return cpu_sddmm.sddmm(adjacency, a, b)


def _dispatched_sddmm(adj: list[Tensor], adj_t: list[Tensor], a: Tensor, b: Tensor, precision: str) -> Tensor:
    return _kernel_sddmm(Adjacency.unpack(adj), a, b, precision)


LIBRARY.impl("sddmm", _autograd_sddmm, "Autograd")
LIBRARY.impl("sddmm", _dispatched_sddmm, "CPU")
LIBRARY.impl("sddmm", _dispatched_sddmm, "CUDA")


@torch.library.register_fake(f"{NAMESPACE}::sddmm", lib=LIBRARY)
def _fake_sddmm(adj: list[Tensor], adj_t: list[Tensor], a: Tensor, b: Tensor, precision: str) -> Tensor:
    return a.new_empty(adj[1].shape[0], *a.shape[1:-1])
