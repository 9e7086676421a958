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

NAME = f"{NAMESPACE}::sddmm"
LIBRARY.define("sddmm(Tensor[] adj, Tensor[] adj_t, Tensor a, Tensor b, str precision) -> Tensor")


@torch.library.impl(LIBRARY, "sddmm", "CPU")
def _cpu(adj: list[Tensor], adj_t: list[Tensor], a: Tensor, b: Tensor, precision: str) -> Tensor:
    return cpu.sddmm(Adjacency.unpack(adj), a, b)


@torch.library.impl(LIBRARY, "sddmm", "CUDA")
def _cuda(adj: list[Tensor], adj_t: list[Tensor], a: Tensor, b: Tensor, precision: str) -> Tensor:
    from ..kernels.choose import sddmm

    return sddmm(Adjacency.unpack(adj), a, b, precision)


@torch.library.register_fake(NAME, lib=LIBRARY)
def _fake(adj: list[Tensor], adj_t: list[Tensor], a: Tensor, b: Tensor, precision: str) -> Tensor:
    return a.new_empty(adj[1].shape[0], *a.shape[1:-1])


def _save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    adj, adj_t, a, b, ctx.precision = inputs
    ctx.sizes = len(adj), len(adj_t)
    ctx.save_for_backward(*adj, *adj_t, a, b)


def _backward(ctx: Any, grad: Tensor) -> tuple:
    num_adj, num_adj_t = ctx.sizes
    saved = list(ctx.saved_tensors)
    adj, adj_t, (a, b) = saved[:num_adj], saved[num_adj : num_adj + num_adj_t], saved[num_adj + num_adj_t :]
    _, _, needs_a, needs_b, _ = ctx.needs_input_grad
    spmm = torch.ops.torch_tcgnn.spmm
    grad_a = spmm(adj, adj_t, b, grad, ctx.precision) if needs_a else None
    grad_b = spmm(adj_t, adj, a, grad, ctx.precision) if needs_b else None
    return [None] * num_adj, [None] * num_adj_t, grad_a, grad_b, None


torch.library.register_autograd(NAME, _backward, setup_context=_save, lib=LIBRARY)
