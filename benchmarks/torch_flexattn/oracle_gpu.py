"""The answers of the GPU cases for a few heads, in float64, and how far from them outputs may lie.

Low precision passes if its error is at most twice that of dense attention in the same precision, plus 1e-5. Dense
means: products of queries and keys, rounded to that type; score modification and softmax in float32; weights rounded to
the type, and their products with the values too. Gradients are PyTorch's, through these roundings. A fused kernel keeps
scores in float32 and rounds weights and output alike, so it should err less. Errors are the largest among 128
neighbouring rows, their features and the heads that are compared: single elements are right by chance, and the size of
rows changes slowly.

All other heads need only be finite.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from benchmarks.case import Outputs
from benchmarks.check import as_tensors
from benchmarks.torch_flexattn.gpu_tasks import GpuTask
from benchmarks.torch_flexattn.plain_mods import plain_score

ROWS = 128
FACTOR, FLOOR = 2.0, 1e-5

__all__ = ["bound", "compared", "reference"]


def _head(task: GpuTask, b: int, h: int, dtype: torch.dtype, visible: Tensor | None) -> list[Tensor]:
    """Output of one head, or the gradients that are wanted, in float64 or rounded as the module says."""
    exact = torch.promote_types(dtype, torch.float32)
    group = h // (task.q.shape[1] // task.k.shape[1])
    heads = (task.q[b, h], task.k[b, group], task.v[b, group])
    q, k, v = (t.detach().to(dtype).requires_grad_(bool(task.wanted)) for t in heads)
    of_table = len(task.wanted) > 3
    table = None if task.table is None else task.table.detach().to(exact).requires_grad_(of_table)
    score = (q @ k.T).to(exact) * q.shape[1] ** -0.5
    modification = plain_score(task.score_name, table)
    if modification is not None:
        rows, columns = (torch.arange(n, device=q.device) for n in score.shape)
        b_idx, h_idx = (torch.full((), n, device=q.device) for n in (b, h))
        score = modification(score, b_idx, h_idx, rows[:, None], columns[None])
    if visible is not None:
        score = score.masked_fill(~visible, float("-inf"))
    out = torch.softmax(score, 1).to(dtype) @ v
    if not task.wanted:
        return [out]
    assert task.grad is not None
    inputs = [q, k, v, *([table] if table is not None and of_table else [])]
    gradients = list(torch.autograd.grad(out, inputs, task.grad[b, h].to(dtype)))
    return [*gradients[:3], *(of_all[h] for of_all in gradients[3:])]


def _dense(task: GpuTask, dtype: torch.dtype) -> list[Tensor]:
    """``[batches, heads, rows, features]`` of the compared heads in float64; of a table ``[heads, entries]``."""
    visible = task.visible()
    found = [[_head(task, b, h, dtype, visible) for h in task.heads] for b in task.batches]
    stacked = [
        torch.stack([torch.stack([head[n].double() for head in heads]) for heads in found])
        for n in range(len(found[0][0]))
    ]
    return [t if t.dim() == 4 else t.sum(0) for t in stacked]


@lru_cache(maxsize=1)
def _exact(task: GpuTask) -> list[Tensor]:
    return _dense(task, torch.float64)


def _flags(count: int, value: float, device: torch.device) -> Tensor:
    return torch.full((count,), value, dtype=torch.float64, device=device)


def reference(task: GpuTask) -> list[Tensor]:
    """Outputs or gradients of the compared heads, and ones: everything is finite."""
    exact = _exact(task)
    return [*exact, _flags(len(exact), 1.0, task.q.device)]


def bound(task: GpuTask) -> list[Tensor]:
    """Largest allowed error of every element of `reference`."""
    pairs = zip(_exact(task), _dense(task, task.q.dtype), strict=True)
    allowed = [FACTOR * _largest_nearby((rough - exact).abs()) + FLOOR for exact, rough in pairs]
    return [*allowed, _flags(len(allowed), 0.0, task.q.device)]


def compared(task: GpuTask, outputs: Outputs) -> list[Tensor]:
    """What `reference` has of a runner's outputs."""
    tensors = as_tensors(outputs)
    finite = torch.stack([t.isfinite().all() for t in tensors])
    return [*(_part(t, task.batches, task.heads) for t in tensors), finite]


def _part(output: Tensor, batches: Sequence[int], heads: Sequence[int]) -> Tensor:
    return output[list(batches)][:, list(heads)] if output.dim() == 4 else output[list(heads)]


def _largest_nearby(error: Tensor) -> Tensor:
    """Every element replaced by the largest of its rows, in any head; entries of a table are rows of one feature."""
    rows = error.amax((0, 1, 3)) if error.dim() == 4 else error.amax(0)
    nearby = torch.cat([group.amax().expand_as(group) for group in rows.split(ROWS)])
    return nearby.unsqueeze(1).expand_as(error) if error.dim() == 4 else nearby.expand_as(error)
