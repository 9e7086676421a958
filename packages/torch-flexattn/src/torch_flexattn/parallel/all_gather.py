"""Context parallelism by one collective: every rank gets all keys and values, and attends with its own queries.

Keys are put in original order, so a causal mask or a window stays a stretch of keys. Backward sends to each rank the
sum of the gradients of its keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..call import Call
from ..ops import attention as ops
from .exchange import apart, gather, sum_and_scatter, together
from .job import Gradients, Job, exact, gradients
from .order import by_rank, in_original_order


def forward(
    job: Job, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None
) -> tuple[Tensor, Tensor, list[Call], list[Tensor]]:
    """``out`` and ``lse`` of the local queries, and what backward needs: calls of kernels and tensors."""
    world = job.plan.world
    flat = gather(together(k, v), world, job.group)
    parts = flat.split([k.numel(), v.numel()], 1)
    key, value = (in_original_order(x.view(world, *t.shape), job.plan) for x, t in zip(parts, (k, v)))
    call = job.call(q, None)
    out, lse, _ = ops.attention(q, key, value, sinks, call)
    return out, lse, [call], [key, value]


def backward(
    job: Job,
    calls: list[Call],
    kept: list[Tensor],
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    sinks: Tensor | None,
) -> tuple[Gradients, Tensor, Tensor]:
    """Gradients of the local queries and of what every rank has, those of the local keys and of the local values."""
    found, of_key, of_value = gradients(job, calls[0], grad_out, grad_lse, q, kept[0], kept[1], out, lse, sinks)
    # One rank's keys, then its values, then the next rank's: what a rank receives is one piece.
    flat = torch.cat([by_rank(x.to(exact(k.dtype)), job.plan).flatten(1) for x in (of_key, of_value)], 1)
    own = sum_and_scatter(flat, job.group)
    of_key, of_value = apart(own, k, v)
    return found, of_key, of_value
