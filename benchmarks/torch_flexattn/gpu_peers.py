"""Who else computes the cases on a GPU: PyTorch's flex_attention, cuDNN through PyTorch, FlashAttention-3.

cuDNN and FlashAttention-3 know no mods; they are peers where nothing or the future is hidden. FlashAttention-3 takes
``[B, S, H, E]``, a layout that is made before the clock starts.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.case import Run, Runner
from benchmarks.torch_flexattn.gpu_tasks import GpuTask
from benchmarks.torch_flexattn.torch_flex import FORWARD, torch_flex

__all__ = ["backward", "peers_of"]


def cudnn(task: GpuTask) -> Run:
    """cuDNN's attention."""
    causal = task.mask_name == "causal"

    def run() -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(task.q, task.k, task.v, is_causal=causal, enable_gqa=task.grouped)

    return run


def flash_attention_3(task: GpuTask) -> Run:
    """FlashAttention-3, where it is installed; the wheel of its forward pass alone has a name of its own."""
    try:
        from flash_attn_interface import flash_attn_func  # pyright: ignore[reportMissingImports]
    except ImportError:
        from fa3_fwd_interface import flash_attn_func  # pyright: ignore[reportMissingImports]

    causal = task.mask_name == "causal"
    q, k, v = (t.transpose(1, 2).contiguous() for t in (task.q, task.k, task.v))

    def run() -> Tensor:
        found: Any = flash_attn_func(q, k, v, causal=causal)
        return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)

    return run


def backward(runner: Runner) -> Runner:
    """The backward pass alone: the forward pass runs once, before the clock starts, and its graph is kept."""

    def prepare(task: GpuTask) -> Run:
        out = runner(task)()
        return lambda: torch.autograd.grad(out, task.wanted, task.grad, retain_graph=True)

    return prepare


def peers_of(mask: str, score: str, *, with_backward: bool) -> dict[str, Runner]:
    """The peers of a case; TMA is an option of PyTorch's forward kernel alone."""
    plain = mask in ("full", "causal") and not score
    if with_backward:
        found: dict[str, Runner] = {"torch-flex": torch_flex, **({"cudnn-sdpa": cudnn} if plain else {})}
        return {name: backward(peer) for name, peer in found.items()}
    return {**FORWARD, **({"cudnn-sdpa": cudnn, "fa3": flash_attention_3} if plain else {})}
