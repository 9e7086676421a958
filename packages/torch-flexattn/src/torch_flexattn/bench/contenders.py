"""Who takes part: this package, and PyTorch's attentions. Each makes of a task a call without arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention import flex_attention as theirs
from torch.nn.functional import scaled_dot_product_attention

from ..functional import flex_attention
from ..paged import PagedKVCache
from .task import Task

Run = Callable[[], Any]
Prepare = Callable[[Task], Run]
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def ours(task: Task) -> Run:
    """Of this package; from pages where the case says so."""
    of = task.variant
    if task.case.page:
        return _paged(task)
    return lambda: flex_attention(
        task.q, task.k, task.v, of.score, of.mask, enable_gqa=task.grouped, q_offset=task.offset
    )


def contiguous(task: Task) -> Run:
    """Of this package, keys side by side: what pages are compared with."""
    lens = torch.full((task.case.batch,), task.case.keys, dtype=torch.int32, device=task.q.device)
    of = task.variant
    return lambda: flex_attention(
        task.q, task.k, task.v, of.score, of.mask, enable_gqa=task.grouped, q_offset=task.offset, kv_lens=lens
    )


def _paged(task: Task) -> Run:
    case, of = task.case, task.variant
    pages = case.batch * -(-case.keys // case.page)
    cache = PagedKVCache(
        pages, case.page, case.kv_heads, case.width, max_seqs=case.batch, dtype=task.k.dtype, device=task.k.device
    )
    seqs = [cache.allocate() for _ in range(case.batch)]
    cache.append(seqs, task.k, task.v)
    return lambda: cache.attend(task.q, seqs, of.score, of.mask)


def torch_flex(task: Task) -> Run:
    """PyTorch's flex_attention, compiled for these sizes, with its block mask made beforehand."""
    torch._dynamo.reset()
    of, case, offset = task.variant, task.case, task.offset
    mask, score = of.plain_mask, of.plain_score
    if offset and mask is not None:
        plain_mask = mask
        mask = lambda b, h, q_idx, kv_idx: plain_mask(b, h, q_idx + offset, kv_idx)  # noqa: E731
    if offset and score is not None:
        plain_score = score
        score = lambda s, b, h, q_idx, kv_idx: plain_score(s, b, h, q_idx + offset, kv_idx)  # noqa: E731
    blocks = None
    if mask is not None:
        blocks = theirs.create_block_mask(mask, None, None, case.queries, case.keys, device=task.q.device)
    attend = torch.compile(theirs.flex_attention, dynamic=False)
    return lambda: attend(task.q, task.k, task.v, score_mod=score, block_mask=blocks, enable_gqa=task.grouped)


def sdpa(backend: str) -> Prepare:
    """PyTorch's scaled_dot_product_attention by one of its backends; masks and biases as a tensor made beforehand."""

    def prepare(task: Task) -> Run:
        causal = task.case.mod == "causal" and not task.offset
        bias = None if causal or task.case.mod == "noop" else task.bias()

        def run() -> Tensor:
            with sdpa_kernel(BACKENDS[backend]):
                return scaled_dot_product_attention(
                    task.q, task.k, task.v, attn_mask=bias, is_causal=causal, enable_gqa=task.grouped
                )

        return run

    return prepare


PEERS: dict[str, Prepare] = {"torch_flex": torch_flex, **{name: sdpa(name) for name in BACKENDS}}


def backward(prepare: Prepare, task: Task) -> Run:
    """The backward pass alone: its graph is made before the clock starts, and kept."""
    import torch._functorch.config

    with torch._functorch.config.patch(donated_buffer=False):
        out = prepare(task)()
        wanted = task.wanted
        torch.autograd.grad(out, wanted, task.grad, retain_graph=True)  # compilers make it at its first call
    return lambda: torch.autograd.grad(out, wanted, task.grad, retain_graph=True)


def results_of(found: Any) -> Sequence[Tensor]:
    """What a call gave, as a sequence."""
    return [found] if isinstance(found, Tensor) else list(found)
