"""``forward`` and ``backward``: attention with a score modification over the blocks of a mask.

In plain eager mode the kernels are called past the dispatcher; under ``torch.compile``, ``torch.export`` and the like,
as ops on packed calls (see ``call``). The derivative is that of ``backward``, once: a second one is asked of
``reference``.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from ..block_mask import BlockMask
from ..call import Call, Packed, captured_by_score, given, pack, unpack
from ..errors import UnsupportedError
from ..fp8 import FP8, NO_GRADIENT, result_dtype
from ..kernels.choose import kernels_for
from ..stats import note_call, serving
from ..unwrapped import is_transformed
from .library import LIBRARY
from .plain import needs_grad, on_device, outside_autocast, plain_eager

_PACKED = (
    "Tensor[] runs, Tensor[] captures, Tensor numbers, Tensor? q_offset, Tensor? kv_lens, Tensor? seed, "
    "Tensor? descales, SymInt[] layout, str program, float scale, float dropout_p, bool check, str backend, "
    "bool deterministic, bool batch_invariant"
)
LIBRARY.define(
    f"forward(Tensor q, Tensor k, Tensor v, Tensor? sinks, {_PACKED}, bool want_max) -> (Tensor, Tensor, Tensor)"
)
LIBRARY.define(
    "backward(Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? sinks, "
    f"{_PACKED}, bool[] needed) -> Tensor[]"
)

NO_SECOND = "attention has no second derivative here: use backend='reference', which is dense, instead"
NO_TANGENTS = (
    "attention has no derivative in forward mode (jvp, jacfwd, dual numbers): use backend='reference', which is dense"
)

Results = tuple[Tensor, Tensor, Tensor]
MaybeLargest = tuple[Tensor, Tensor, Tensor | None]


def attention(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, call: Call) -> MaybeLargest:
    """``out``, ``lse`` and the largest scores (nothing, or empty, unless the call wants them)."""
    inputs = (q, k, v, sinks, *call.captures)
    if not q.is_meta and plain_eager(*inputs):
        run = Attention.apply if needs_grad(*inputs) else _run
        return run(q, k, v, sinks, call, call.want_max, *call.captures)
    if is_transformed():
        from .transformed import transformed

        return transformed(q, k, v, sinks, call)
    return torch.ops.torch_flexattn.forward(q, k, v, sinks, *pack(call), call.want_max)


class Attention(torch.autograd.Function):
    """The derivative. Of a :class:`Call` the kernels are called, of a :class:`Packed` one the ops."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        call: Call | Packed,
        want_max: bool,
        *captures: Tensor,
    ) -> Results:
        if k.dtype == FP8:
            raise UnsupportedError(NO_GRADIENT)
        out, lse, largest = _whole(_run(q, k, v, sinks, call, want_max, *captures))
        ctx.count = len(captures)
        ctx.save_for_backward(q, k, v, sinks, out, lse, *captures, *read_again(call))
        ctx.call = call
        ctx.mark_non_differentiable(largest)
        ctx.set_materialize_grads(False)
        return out, lse, largest

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise UnsupportedError(NO_SECOND)
        grad_out, grad_lse, _ = grad_outputs
        q, k, v, sinks, out, lse, *captures = ctx.saved_tensors  # raises where one was changed since
        captures = captures[: ctx.count]
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        needed = [bool(n) for n in ctx.needs_input_grad[6:]]
        tensors = (grad_out, grad_lse, q, k, v, out, lse, sinks)
        if isinstance(ctx.call, Call):
            found = iter(run_backward(*tensors, ctx.call, needed))
        else:
            packed = ctx.call._replace(captures=[*captures, *ctx.call.captures[ctx.count :]])
            found = iter(torch.ops.torch_flexattn.backward(*tensors, *packed, needed))
        of_q, of_k, of_v = next(found), next(found), next(found)
        of_sinks = None if sinks is None else next(found)
        return of_q, of_k, of_v, of_sinks, None, None, *(next(found) if need else None for need in needed)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise UnsupportedError(NO_TANGENTS)


def _whole(results: MaybeLargest) -> Results:
    """As autograd and operators want them: an empty tensor for nothing."""
    out, lse, largest = results
    return out, lse, lse.new_empty(0) if largest is None else largest


def read_again(call: Call | Packed) -> list[Tensor]:
    """What backward reads beside its arguments, which must be what it was."""
    given = [call.q_offset, call.kv_lens, call.seed]
    if isinstance(call, Packed):
        given += [*call.runs, *call.captures]
    elif isinstance(call.mask, BlockMask):
        given += [call.mask.row_ptr, call.mask.runs, *(() if call.mask.mod is None else call.mask.mod.captures)]
    return [t for t in given if isinstance(t, Tensor) and not t.is_inference()]


def _run(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, call: Call | Packed, want_max: bool, *captures: Tensor
) -> MaybeLargest:
    if isinstance(call, Packed):
        with torch._C._AutoDispatchBelowAutograd():
            whole = [*captures, *call.captures[len(captures) :]]
            return torch.ops.torch_flexattn.forward(q, k, v, sinks, *call._replace(captures=whole), want_max)
    kernels = kernels_for(call.backend, q.device, q.dtype, call.check, call.kernel_options)
    again = call.again
    if again is not None and again.forward is not None and q.get_device() == torch.cuda.current_device():
        found: MaybeLargest | None = again.forward(q, k, v, sinks)
        if found is not None:
            serving(again.kernel)
            note_call(q, k, v, call.mask, backward=False)
            return found
    options = call.options()
    if kernels.repeats:
        options["again"] = again
    with outside_autocast(q), on_device(q):
        out, lse, largest = kernels.forward(
            q, k, v, sinks=sinks, want_max=want_max, descales=call.descales, batch_invariant=call.batch_invariant,
            **options,
        )  # fmt: skip
    note_call(q, k, v, call.mask, backward=False)
    return out, lse, largest


def run_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    sinks: Tensor | None,
    call: Call,
    needed: list[bool],
) -> list[Tensor]:
    """Gradients of q, k, v, of the sinks where there are some, and of the captured tensors that need one."""
    kernels = kernels_for(call.backend, q.device, q.dtype, call.check, call.kernel_options)
    with outside_autocast(q), on_device(q):
        of_q, of_k, of_v, of_captures, of_sinks = kernels.backward(
            grad_out, grad_lse, q, k, v, out, lse, sinks=sinks, needed=needed, deterministic=call.deterministic,
            **call.options(),
        )  # fmt: skip
    note_call(q, k, v, call.mask, backward=True)
    return [t for t in (of_q, of_k, of_v, of_sinks, *of_captures) if t is not None]


def _autograd_forward(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *packed: Any) -> Results:
    *arguments, want_max = packed
    call = given(arguments)
    captures = call.captures[: captured_by_score(call.program)]  # those of the mask get no gradient
    run = Attention.apply if needs_grad(q, k, v, sinks, *captures) else _run
    return _whole(run(q, k, v, sinks, call, want_max, *captures))


def _forward(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *packed: Any) -> Results:
    *arguments, want_max = packed
    return _whole(_run(q, k, v, sinks, unpack(q, k, *given(arguments), want_max), want_max))


def _backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    sinks: Tensor | None,
    *packed: Any,
) -> list[Tensor]:
    *arguments, needed = packed
    call = unpack(q, k, *arguments)
    return run_backward(grad_out, grad_lse, q, k, v, out, lse, sinks, call, needed)


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *packed: Any) -> Results:
    want_max = packed[-1]
    order = sorted(range(3), key=lambda d: -q.stride(d))
    out = torch.empty_permuted((*q.shape[:3], v.shape[-1]), (*order, 3), dtype=result_dtype(q.dtype), device=q.device)
    lse = q.new_empty(q.shape[:3], dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)
    return out, lse, torch.empty_like(lse) if want_max else lse.new_empty(0)


def _fake_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    sinks: Tensor | None,
    *packed: Any,
) -> list[Tensor]:
    captures, needed = packed[1], packed[-1]
    order = sorted(range(3), key=lambda d: -q.stride(d))
    of_q = torch.empty_permuted(q.shape, (*order, 3), dtype=q.dtype, device=q.device)
    of_inputs = [of_q, k.new_empty(k.shape), v.new_empty(v.shape)]
    of_sinks = [] if sinks is None else [sinks.new_empty(sinks.shape)]
    return [*of_inputs, *of_sinks, *(c.new_empty(c.shape) for c, need in zip(captures, needed) if need)]


LIBRARY.impl("forward", _autograd_forward, "Autograd")
for _device in ("CPU", "CUDA"):
    LIBRARY.impl("forward", _forward, _device)
    LIBRARY.impl("backward", _backward, _device)
torch.library.register_fake("torch_flexattn::forward", _fake_forward, lib=LIBRARY)
torch.library.register_fake("torch_flexattn::backward", _fake_backward, lib=LIBRARY)
