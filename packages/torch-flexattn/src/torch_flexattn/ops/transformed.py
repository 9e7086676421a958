"""Attention under the transformations of ``torch.func``: gradients, once; of batches and of tangents it has no rule.

PyTorch takes an ``autograd.Function`` apart there: ``forward`` sees the tensors below all transformations, and what a
backward pass needs is kept by ``setup_context``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..block_mask import BlockMask
from ..call import Call
from ..errors import UnsupportedError
from ..fp8 import FP8, NO_GRADIENT
from ..mods import MaskMod, ScoreMod
from ..unwrapped import NO_BATCHES, unwrapped
from .attention import NO_SECOND, NO_TANGENTS, Results, attention, read_again, run_backward


def transformed(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, call: Call) -> Results:
    """``attention`` where a transformation is active."""
    plain = {
        name: unwrapped(given) if isinstance(given := getattr(call, name), Tensor) else given
        for name in ("q_offset", "kv_lens", "seed", "descales")
    }
    call = replace(call, mask=_plain(call.mask), again=None, **plain)
    return _Transformed.apply(q, k, v, sinks, call, *call.captures)


def _plain(mask: Any) -> Any:
    """The mask, which gets no gradient, below the transformations."""
    if isinstance(mask, MaskMod):
        return MaskMod(mask.program, tuple(map(unwrapped, mask.captures)), mask.scalars)
    if isinstance(mask, BlockMask):
        runs = unwrapped(mask.row_ptr), unwrapped(mask.runs)
        return BlockMask(*runs, mask.shape, mask.block, _plain(mask.mod), mask.listed, mask.room)
    return mask


def _with(call: Call, captures: tuple[Tensor, ...]) -> Call:
    """The call with other tensors for those that its score modification captures."""
    if call.score is None:
        return call
    return replace(call, score=ScoreMod(call.score.program, captures, call.score.scalars))


class _Ruled(torch.autograd.Function):
    """Says what there is no rule for."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> NoReturn:
        raise UnsupportedError(NO_BATCHES)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise UnsupportedError(NO_TANGENTS)


class _Transformed(_Ruled):
    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, call: Call, *captures: Tensor) -> Results:
        with torch.no_grad():
            out, lse, largest = attention(q, k, v, sinks, _with(call, captures))
        return out, lse, lse.new_empty(0) if largest is None else largest

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        q, k, v, sinks, call, *captures = inputs
        if k.dtype == FP8:
            raise UnsupportedError(NO_GRADIENT)
        out, lse, largest = output
        ctx.call = call
        ctx.save_for_backward(q, k, v, sinks, out, lse, *captures, *read_again(call))
        ctx.count = len(captures)
        ctx.mark_non_differentiable(largest)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, out, lse, *captures = ctx.saved_tensors
        captures = captures[: ctx.count]
        needed = [bool(n) for n in ctx.needs_input_grad[5:]]
        found = iter(_Gradients.apply(*gradients[:2], q, k, v, out, lse, sinks, ctx.call, needed, *captures))
        of_q, of_k, of_v = next(found), next(found), next(found)
        of_sinks = None if sinks is None else next(found)
        return of_q, of_k, of_v, of_sinks, None, *(next(found) if need else None for need in needed)


class _Gradients(_Ruled):
    """The backward pass, which has no derivative."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        grad_out, grad_lse, q, k, v, out, lse, sinks, call, needed, *captures = arguments
        tensors = (grad_out, grad_lse, q, k, v, out, lse, sinks)
        return tuple(run_backward(*tensors, _with(call, tuple(captures)), needed))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> NoReturn:
        raise UnsupportedError(NO_SECOND)
