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

NAME = f"{NAMESPACE}::spmm"
LIBRARY.define("spmm(Tensor[] adj, Tensor[] adj_t, Tensor x, Tensor? weight, str precision) -> Tensor")


@torch.library.impl(LIBRARY, "spmm", "CPU")
def _cpu(adj: list[Tensor], adj_t: list[Tensor], x: Tensor, weight: Tensor | None, precision: str) -> Tensor:
    return cpu.spmm(Adjacency.unpack(adj), x, weight)


@torch.library.impl(LIBRARY, "spmm", "CUDA")
def _cuda(adj: list[Tensor], adj_t: list[Tensor], x: Tensor, weight: Tensor | None, precision: str) -> Tensor:
    from ..kernels.choose import spmm

    return spmm(Adjacency.unpack(adj), x, weight, precision)


@torch.library.register_fake(NAME, lib=LIBRARY)
def _fake(adj: list[Tensor], adj_t: list[Tensor], x: Tensor, weight: Tensor | None, precision: str) -> Tensor:
    return x.new_empty(adj[0].shape[0] - 1, *x.shape[1:])


def _save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    adj, adj_t, x, weight, ctx.precision = inputs
    ctx.sizes = len(adj), len(adj_t)
    ctx.save_for_backward(*adj, *adj_t, x, *([] if weight is None else [weight]))


def _backward(ctx: Any, grad: Tensor) -> tuple:
    num_adj, num_adj_t = ctx.sizes
    saved = list(ctx.saved_tensors)
    adj, adj_t, (x, *rest) = saved[:num_adj], saved[num_adj : num_adj + num_adj_t], saved[num_adj + num_adj_t :]
    weight = rest[0] if rest else None
    _, _, needs_x, needs_weight, _ = ctx.needs_input_grad
    grad_x = torch.ops.torch_tcgnn.spmm(adj_t, adj, grad, weight, ctx.precision) if needs_x else None
    grad_weight = None
    if needs_weight and weight is not None:
        grad_weight = torch.ops.torch_tcgnn.sddmm(adj, adj_t, grad, x, ctx.precision).to(weight.dtype)
    return [None] * num_adj, [None] * num_adj_t, grad_x, grad_weight, None


torch.library.register_autograd(NAME, _backward, setup_context=_save, lib=LIBRARY)
