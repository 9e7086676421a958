"""FlashInfer's batch decoding, where it is installed. It takes keys and values in pages.

Keys side by side are the same to it in pages of ``PAGE`` keys, each sequence's one after the other. Its plan is made
beforehand, as a server makes it once a step for all layers.

Reference:
    Ye et al., *FlashInfer: Efficient and Customizable Attention Engine for LLM Inference Serving*, MLSys 2025.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from .pages import pages_of
from .peer import Peer, Run, needs_gpu
from .task import TakesNoPart, Task
from .variants import CAP, WINDOW

PAGE = 64
WORKSPACE_BYTES = 128 << 20
PLAIN: dict[str, dict[str, Any]] = {
    "noop": {},
    "sliding_window": {"window_left": WINDOW - 1},
    "softcap": {"logits_soft_cap": CAP},
}
"""Arguments of its plan that mean our modifications."""


def absent(device: torch.device) -> str:
    """Why it cannot be measured on a device."""
    try:
        importlib.import_module("flashinfer")
    except Exception as error:  # it compiles and loads at import: anything may fail
        return f"cannot be imported ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
    return needs_gpu(device)


def prepare(task: Task) -> Run:
    """Its call for one query a sequence.

    Raises:
        TakesNoPart: more queries, a backward pass, or a modification that it has no place for.
    """
    case = task.case
    if case.queries != 1 or case.backward:
        raise TakesNoPart("here for decoding alone")
    if case.mod not in PLAIN:
        raise TakesNoPart(f"it has no place for {case.mod}")
    flashinfer: Any = importlib.import_module("flashinfer")
    page = case.page or PAGE
    cut = pages_of(task, page, mixed=bool(case.page))
    batch, count = cut.table.shape
    device = task.q.device
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device), "NHD", use_tensor_cores=task.grouped
    )
    wrapper.plan(
        torch.arange(batch + 1, dtype=torch.int32, device=device) * count, cut.table.flatten(),
        torch.full((batch,), cut.last, dtype=torch.int32, device=device), case.heads, case.kv_heads, case.width, page,
        q_data_type=task.q.dtype, kv_data_type=task.k.dtype, **PLAIN[case.mod],
    )  # fmt: skip
    q = task.q[:, :, 0].contiguous()

    def run() -> Tensor:
        return wrapper.run(q, (cut.k, cut.v))[:, :, None]

    return run


PEERS = {"flashinfer": Peer(prepare, absent)}
