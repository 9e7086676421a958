"""Who takes part: this package, in three ways, and the peers by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..functional import flex_attention
from ..paged import PagedKVCache
from . import flash_attention, flash_infer, torch_peers
from .peer import Peer, Prepare, Run
from .task import Task

TURNS = 64
"""In which the sequences of a paged cache grow, so that their pages lie between each other's."""


def ours(task: Task, deterministic: bool | None = None) -> Run:
    """Of this package; from pages where the case says so."""
    of = task.variant
    if task.case.page:
        return _paged(task)
    return lambda: flex_attention(
        task.q, task.k, task.v, of.score, of.mask, enable_gqa=task.grouped, q_offset=task.offset,
        deterministic=deterministic,
    )  # fmt: skip


def contiguous(task: Task) -> Run:
    """Of this package, keys side by side: what pages are compared with."""
    lens = torch.full((task.case.batch,), task.case.keys, dtype=torch.int32, device=task.q.device)
    of = task.variant
    return lambda: flex_attention(
        task.q, task.k, task.v, of.score, of.mask, enable_gqa=task.grouped, q_offset=task.offset, kv_lens=lens
    )


def without_learnt(task: Task) -> Task:
    """The same, but nothing that the score modification captures learns: what its gradients cost is compared with."""
    of = task.variant
    if of.score is None:
        return task
    captures = tuple(capture.detach() for capture in of.score.captures)
    fixed = dataclasses.replace(of, score=dataclasses.replace(of.score, captures=captures), learnt=())
    return dataclasses.replace(task, variant=fixed)


def _paged(task: Task) -> Run:
    case, of = task.case, task.variant
    pages = case.batch * -(-case.keys // case.page)
    cache = PagedKVCache(
        pages, case.page, case.kv_heads, case.width, max_seqs=case.batch, max_tokens=case.keys, dtype=task.k.dtype,
        device=task.k.device,
    )  # fmt: skip
    seqs = [cache.allocate() for _ in range(case.batch)]
    step = max(case.page, case.keys // TURNS)
    for start in range(0, case.keys, step):
        cache.append(seqs, task.k[:, :, start : start + step], task.v[:, :, start : start + step])
    return lambda: cache.attend(task.q, seqs, of.score, of.mask)


PEERS: dict[str, Peer] = {
    **torch_peers.PEERS,
    **flash_attention.PEERS,
    **flash_infer.PEERS,
    "contiguous": Peer(contiguous),
    "fixed_bias": Peer(ours, laid=without_learnt, is_partial=True),
}


def backward(prepare: Prepare, task: Task) -> Run:
    """The backward pass alone: its graph is made before the clock starts, and kept."""
    import torch._functorch.config

    with torch._functorch.config.patch(donated_buffer=False):
        out = prepare(task)()
        wanted = task.wanted
        run = partial(torch.autograd.grad, out, wanted, task.grad, retain_graph=True)
        run()  # compilers make it at its first call
    return run


def results_of(found: Any) -> Sequence[Tensor]:
    """What a call gave, as a sequence."""
    return [found] if isinstance(found, Tensor) else list(found)
