"""Context parallelism by a ring: keys and values go round, and each rank attends to those that it holds just now.

The parts of a softmax are merged by their ``lse``. What goes to the next rank is under way while the kernel runs. A
rank whose queries see none of the keys it holds does not run one. In backward the gradients of keys follow the keys
from rank to rank, and come home in the end (Liu, Zaharia and Abbeel, *Ring Attention*, 2023).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..call import Call
from ..functional.merge import merge_attention
from ..ops import attention as ops
from .exchange import KEYS, SUMS, Ring, Transfer, apart, together
from .job import Gradients, Job, exact, gradients, has_visible, no_gradients


def forward(
    job: Job, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None
) -> tuple[Tensor, Tensor, list[Call], list[Tensor]]:
    """``out`` and ``lse`` of the local queries, and what backward needs: calls of kernels, one a step."""
    world = job.plan.world
    ring = Ring(job.rank, world, job.group) if world > 1 else None
    held = together(k, v)
    total: tuple[Tensor, Tensor] | None = None
    calls = []
    for step in range(world):
        under_way = ring.pass_on(held, KEYS) if ring is not None and step < world - 1 else None
        call = job.call(q, (job.rank - step) % world)
        calls.append(call)
        of_step = sinks if step == 0 else None  # one key more, once
        if has_visible(call) or of_step is not None:
            out, lse, _ = ops.attention(q, *apart(held, k, v), of_step, call)
            total = (out.to(exact(q.dtype)), lse) if total is None else merge_attention([total, (out, lse)])
        if under_way is not None:
            held = under_way.wait()
    if total is None:
        lse = q.new_full(q.shape[:3], float("-inf"), dtype=exact(q.dtype))
        return q.new_zeros(*q.shape[:3], v.shape[3]), lse, calls, []
    return total[0].to(q.dtype), total[1], calls, []


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
    """Gradients of the local queries and of what every rank has, those of the local keys and of the local values.

    ``out`` and ``lse`` are those of all keys, so each step gives what its keys contribute.
    """
    world = job.plan.world
    ring = Ring(job.rank, world, job.group) if world > 1 else None
    held = together(k, v)
    total: Gradients | None = None
    carried: Transfer | None = None
    sums = torch.zeros_like(held, dtype=exact(k.dtype))
    for step, call in enumerate(calls):
        under_way = ring.pass_on(held, KEYS) if ring is not None and step < world - 1 else None
        of_step = sinks if step == 0 else None
        part: Tensor | None = None
        if has_visible(call) or of_step is not None:
            key, value = apart(held, k, v)
            found, *of_keys = gradients(job, call, grad_out, grad_lse, q, key, value, out, lse, of_step)
            part = together(*of_keys).to(sums.dtype)
            if total is None:
                total = found
            else:
                total.add(found)
        if carried is not None:
            sums = carried.wait()
        if part is not None:
            sums += part
        if ring is not None:
            carried = ring.pass_on(sums, SUMS)
        if under_way is not None:
            held = under_way.wait()
    if carried is not None:
        sums = carried.wait()
    of_key, of_value = apart(sums, k, v)
    return no_gradients(job, q) if total is None else total, of_key, of_value
