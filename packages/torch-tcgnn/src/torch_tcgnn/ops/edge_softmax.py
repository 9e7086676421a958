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

NAME = f"{NAMESPACE}::edge_softmax"
LIBRARY.define("edge_softmax(Tensor[] adj, Tensor logits) -> Tensor")


@torch.library.impl(LIBRARY, "edge_softmax", "CPU")
def _cpu(adj: list[Tensor], logits: Tensor) -> Tensor:
    return cpu.edge_softmax(Adjacency.unpack(adj), logits)


@torch.library.impl(LIBRARY, "edge_softmax", "CUDA")
def _cuda(adj: list[Tensor], logits: Tensor) -> Tensor:
    from ..kernels import choose

    return choose.edge_softmax(Adjacency.unpack(adj), logits)


@torch.library.register_fake(NAME, lib=LIBRARY)
def _fake(adj: list[Tensor], logits: Tensor) -> Tensor:
    return logits.new_empty(logits.shape)


def _save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[0], output)


def _backward(ctx: Any, grad: Tensor) -> tuple:
    *adj, y = ctx.saved_tensors
    product = y * grad
    total = torch.ops.torch_tcgnn.segment_sum(adj, product)
    return [None] * len(adj), product - y * torch.ops.torch_tcgnn.gather_rows(adj, total)


torch.library.register_autograd(NAME, _backward, setup_context=_save, lib=LIBRARY)
