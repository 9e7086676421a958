"""Attention and its gradients in float64, by a block of queries at a time: the plainest formulas that fit in memory."""

import torch
from torch import Tensor

from benchmarks.torch_flexattn.tasks import Task

ROWS = 512

__all__ = ["backward", "forward"]


def _weights(task: Task, head: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Softmax of some rows of one head, and the derivative of the modified score by the score."""
    device = task.q.device
    scale = task.q.shape[3] ** -0.5
    score = (task.q[0, head, start:stop].double() @ task.k[0, head].double().T * scale).requires_grad_()
    rows, columns = torch.arange(start, stop, device=device)[:, None], torch.arange(task.length, device=device)[None]
    zero, h = torch.zeros((), dtype=torch.int32, device=device), torch.full((), head, dtype=torch.int32, device=device)
    modified = score if task.score is None else task.score(score, zero, h, rows, columns)
    slope = torch.ones_like(score)
    if task.score is not None:
        (slope,) = torch.autograd.grad(modified.sum(), score)
    visible = task.mask(zero, h, rows, columns)
    return torch.softmax(modified.detach().masked_fill(~visible, float("-inf")), -1), slope


def _blocks(task: Task) -> list[tuple[int, int, int]]:
    heads, length = task.q.shape[1:3]
    return [(h, s, min(s + ROWS, length)) for h in range(heads) for s in range(0, length, ROWS)]


def forward(task: Task) -> Tensor:
    """The output."""
    out = torch.empty(task.q.shape, dtype=torch.float64, device=task.q.device)
    for head, start, stop in _blocks(task):
        out[0, head, start:stop] = _weights(task, head, start, stop)[0] @ task.v[0, head].double()
    return out


def backward(task: Task) -> list[Tensor]:
    """Gradients of q, k and v."""
    of_q, of_k, of_v = (torch.zeros(t.shape, dtype=torch.float64, device=t.device) for t in (task.q, task.k, task.v))
    scale = task.q.shape[3] ** -0.5
    for head, start, stop in _blocks(task):
        p, slope = _weights(task, head, start, stop)
        q, k, v = (t.double() for t in (task.q[0, head, start:stop], task.k[0, head], task.v[0, head]))
        grad = task.grad[0, head, start:stop].double()
        of_p = grad @ v.T
        of_score = p * (of_p - (p * of_p).sum(-1, keepdim=True)) * slope
        of_v[0, head] += p.T @ grad
        of_q[0, head, start:stop] = of_score @ k * scale
        of_k[0, head] += of_score.T @ q * scale
    return [of_q, of_k, of_v]
