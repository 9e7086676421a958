"""``merge``: attention over the keys of two parts from attention over each.

On plain tensors the kernel is called past the dispatcher; a compiler gets one operator; transforms of ``torch.func``,
forward mode and tensors of other kinds get PyTorch's operations, which have rules for all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..kernels.choose import why_not_triton
from ..kernels.cpu.merge import gradients, merged
from .library import LIBRARY
from .plain import needs_grad, on_device, outside_autocast, plain_eager

LIBRARY.define("merge(Tensor out, Tensor lse, Tensor other, Tensor other_lse) -> (Tensor, Tensor)")

Results = tuple[Tensor, Tensor]


def merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> Results:
    """``out``, in its type, and ``lse`` of both parts.

    Args:
        out: ``[..., Ev]``.
        lse: ``[...]``.
        other: ``[..., Ev]``.
        other_lse: ``[...]``.
    """
    parts = (out, lse, other, other_lse)
    if torch.compiler.is_compiling():
        return torch.ops.torch_flexattn.merge(*parts)
    if not plain_eager(*parts) or forward_ad._current_level >= 0:
        return merged(*parts)
    return Merge.apply(*parts, True) if needs_grad(*parts) else _merge(*parts)


class Merge(torch.autograd.Function):
    """The derivative, of any order in reverse mode."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor, at_once: bool) -> Results:
        parts = (out, lse, other, other_lse)
        whole, total = _merge(*parts) if at_once else _below(*parts)
        ctx.save_for_backward(*parts, total)
        return whole, total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        found = gradients(*grad_outputs, *ctx.saved_tensors)
        return *(g if need else None for g, need in zip(found, ctx.needs_input_grad)), None


def _merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> Results:
    with outside_autocast(out):
        sums_in_float32 = lse.dtype == other_lse.dtype == torch.float32 and other.dtype != torch.float64
        if out.is_cuda and sums_in_float32 and why_not_triton(out.device, out.dtype, check=False) is None:
            from ..kernels.triton import merge as fused

            if fused.serves(out, other):
                with on_device(out):
                    return fused.merged(out, lse, other, other_lse)
        whole, total = merged(out, lse, other, other_lse)
    like = torch.empty_like(out)
    return whole if whole.stride() == like.stride() else like.copy_(whole), total.contiguous()


def _below(*parts: Tensor) -> Results:
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.torch_flexattn.merge(*parts)


def _autograd(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> Results:
    parts = (out, lse, other, other_lse)
    return Merge.apply(*parts, False) if needs_grad(*parts) else _below(*parts)


def _fake(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> Results:
    dtype = torch.promote_types(lse.dtype, other_lse.dtype)
    return torch.empty_like(out), torch.empty(lse.shape, dtype=dtype, device=lse.device)


LIBRARY.impl("merge", _autograd, "Autograd")
for _device in ("CPU", "CUDA"):
    LIBRARY.impl("merge", _merge, _device)
torch.library.register_fake("torch_flexattn::merge", _fake, lib=LIBRARY)
