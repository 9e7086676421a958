"""PyTorch's attentions: ``flex_attention`` under ``torch.compile``, and ``scaled_dot_product_attention``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention import flex_attention as theirs
from torch.nn.functional import scaled_dot_product_attention

from .memory import check_room
from .peer import Peer, Prepare, Run, is_here, needs_gpu
from .task import Task

BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
ON_CPU = ("flash", "math")


def forget_compiled() -> None:
    """Nothing of the case before is left: past a number of sizes PyTorch would not compile any more.

    Not between the peers of a case, who would all be compiled anew.
    """
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def torch_flex(mode: str | None = None, options: Mapping[str, Any] | None = None) -> Prepare:
    """PyTorch's flex_attention, compiled for these sizes, with its block mask made beforehand.

    Args:
        mode: of ``torch.compile``.
        options: of its kernel.
    """

    def prepare(task: Task) -> Run:
        of, case, offset = task.variant, task.case, task.offset
        mask, score = of.plain_mask, of.plain_score
        blocks: Any = None
        if offset and mask is not None:
            plain_mask = mask
            mask = lambda b, h, q_idx, kv_idx: plain_mask(b, h, q_idx + offset, kv_idx)  # noqa: E731
        if offset and score is not None:
            plain_score = score
            score = lambda s, b, h, q_idx, kv_idx: plain_score(s, b, h, q_idx + offset, kv_idx)  # noqa: E731
        if mask is not None:
            check_room("a mask of all positions", case.queries * case.keys, task.q.device)
            blocks = theirs.create_block_mask(mask, None, None, case.queries, case.keys, device=task.q.device)
        attend: Any = torch.compile(theirs.flex_attention, dynamic=False, mode=mode)
        return lambda: attend(
            task.q, task.k, task.v, score_mod=score, block_mask=blocks, enable_gqa=task.grouped, kernel_options=options
        )

    return prepare


def sdpa(backend: str) -> Prepare:
    """PyTorch's scaled_dot_product_attention by one of its backends; masks and biases as a tensor made beforehand."""

    def prepare(task: Task) -> Run:
        case = task.case
        causal = case.mod == "causal" and not task.offset
        scores = case.queries * case.keys
        if backend == "math":
            check_room("its scores", 4 * case.batch * case.heads * scores, task.q.device)
        bias = None
        if not causal and case.mod != "noop":
            each = 1 if task.variant.plain_score is None else 4 * case.heads
            check_room("a mask or bias of all positions", each * scores, task.q.device)
            bias = task.bias()

        def run() -> Tensor:
            with sdpa_kernel(BACKENDS[backend]):
                return scaled_dot_product_attention(
                    task.q, task.k, task.v, attn_mask=bias, is_causal=causal, enable_gqa=task.grouped
                )

        return run

    return prepare


PEERS = {
    "torch_flex": Peer(torch_flex()),
    "torch_flex_tma": Peer(torch_flex(options={"USE_TMA": True}), needs_gpu),
    "torch_flex_tuned": Peer(torch_flex(mode="max-autotune-no-cudagraphs"), needs_gpu),
    **{name: Peer(sdpa(name), is_here if name in ON_CPU else needs_gpu) for name in BACKENDS},
}
