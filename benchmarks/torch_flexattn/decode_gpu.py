"""One query a sequence over many keys, on a GPU in bfloat16: 32 query heads, 8 key heads, 128 features.

Contiguous keys beside PyTorch's flex_attention and cuDNN; keys in pages (kind ``paged``) beside our own contiguous
call. cuDNN also gets the four queries of a key head as four rows of one head (`cudnn-sdpa-rows`): the same sums without
grouped heads. Work: keys and values, each read once; the memory roof is that of a copy.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch_flexattn as tfa
from torch import Tensor

from benchmarks.case import Case, Run, Runner
from benchmarks.torch_flexattn import oracle_gpu
from benchmarks.torch_flexattn.attention_gpu import ours
from benchmarks.torch_flexattn.gpu_peers import cudnn
from benchmarks.torch_flexattn.gpu_tasks import GpuTask, decode_task
from benchmarks.torch_flexattn.torch_flex import torch_flex

SIZES = ((64, 4096), (8, 32_768), (1, 131_072))
PAGED_SIZES = SIZES[:2]
PAGES = (64, 16)
APPENDS = 64

__all__ = ["PAGED_SIZES", "PAGES", "SIZES", "cases", "cudnn_rows", "key_value_bytes", "named", "paged"]


def named(batch: int, keys: int) -> str:
    """What a size is called."""
    return f"{batch}x{keys}"


def key_value_bytes(task: GpuTask) -> int:
    """Bytes of keys and values."""
    return task.k.element_size() * (task.k.numel() + task.v.numel())


def cudnn_rows(task: GpuTask) -> Run:
    """cuDNN, query heads of a key head as rows of one head."""
    batch, heads, _, width = task.q.shape
    run = cudnn(replace(task, q=task.q.view(batch, task.k.shape[1], heads // task.k.shape[1], width)))

    def as_heads() -> Tensor:
        out: Any = run()
        return out.reshape(batch, heads, 1, width)

    return as_heads


def paged(page: int, task: GpuTask) -> Run:
    """Our cache; sequences grow in turns, so that their pages lie between each other's."""
    batch, heads, keys, width = task.k.shape
    cache = tfa.PagedKVCache(
        batch * -(-keys // page), page, heads, width, max_seqs=batch, max_tokens=keys, dtype=task.k.dtype,
        device=task.k.device,
    )  # fmt: skip
    sequences = [cache.allocate() for _ in range(batch)]
    step = max(page, keys // APPENDS)
    for start in range(0, keys, step):
        cache.append(sequences, task.k[:, :, start : start + step], task.v[:, :, start : start + step])
    return lambda: cache.attend(task.q, sequences)


def _case(kind: str, size: tuple[int, int], run: Runner, peers: dict[str, Runner], tags: tuple[str, ...]) -> Case:
    make: Callable[[torch.device], GpuTask] = partial(decode_task, *size)
    return Case(
        name=f"{kind}/{named(*size)}/bf16",
        tags=(*tags, "gpu", named(*size)),
        make=make,
        ours=run,
        peers=peers,
        reference=oracle_gpu.reference,
        tolerance=oracle_gpu.bound,
        compared=oracle_gpu.compared,
        flops=lambda task: 4 * task.q.shape[3] * task.pairs(),
        bytes=lambda task: key_value_bytes(task) + 2 * task.q.numel() * task.q.element_size(),
        math="bf16",
        bound="memory",
        devices=("cuda",),
    )


def cases() -> list[Case]:
    """Contiguous at every size, paged where there is more than one sequence."""
    peers: dict[str, Runner] = {"torch-flex": torch_flex, "cudnn-sdpa": cudnn, "cudnn-sdpa-rows": cudnn_rows}
    contiguous = [_case("decode", size, ours, peers, ("decode",)) for size in SIZES]
    in_pages = [
        _case(f"paged/page{page}", size, partial(paged, page), {"contiguous": ours}, ("paged", f"page{page}"))
        for page in PAGES for size in PAGED_SIZES
    ]  # fmt: skip
    return [*contiguous, *in_pages]
