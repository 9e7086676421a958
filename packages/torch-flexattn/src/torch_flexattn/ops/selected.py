"""``selected_forward`` and ``selected_backward``: attention of each query to blocks of keys of its own.

In plain eager mode the kernels are called past the dispatcher, as those of ``attention``; elsewhere as ops, whose last
arguments are those of :class:`Selection`. The derivative is taken once: a second one is asked of ``reference``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..kernels.choose import Backend, kernels_for
from ..stats import COUNTS
from ..unwrapped import is_transformed, unwrapped
from .library import LIBRARY
from .plain import needs_grad, on_device, outside_autocast, plain_eager

_OPTIONS = "SymInt block_size, float scale, bool causal, SymInt q_offset, str backend"
LIBRARY.define(f"selected_forward(Tensor q, Tensor k, Tensor v, Tensor blocks, {_OPTIONS}) -> (Tensor, Tensor)")
LIBRARY.define(
    "selected_backward(Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"Tensor blocks, {_OPTIONS}) -> (Tensor, Tensor, Tensor)"
)

Results = tuple[Tensor, Tensor]


class Selection(NamedTuple):
    """Options of a call.

    Attributes:
        block_size: keys of a block, a multiple of 16.
        scale: of the products.
        causal: whether a query sees no key behind it.
        q_offset: what is added to the number of a query.
        backend: which kernels (see ``kernels.choose``).
    """

    block_size: int
    scale: float
    causal: bool
    q_offset: int
    backend: Backend

    def options(self) -> dict[str, Any]:
        """Keyword arguments of the kernels."""
        named = self._asdict()
        del named["backend"]
        return named


def selected_attention(q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, selection: Selection) -> Results:
    """``out`` and ``lse``.

    Args:
        q: ``[B, Hq, L, E]``.
        k: ``[B, Hkv, S, E]``.
        v: ``[B, Hkv, S, Ev]``.
        blocks: integers ``[B, Hkv, L, n]``, distinct for one query; outside the blocks that there are: none.
        selection: the options.
    """
    if not q.is_meta and plain_eager(q, k, v, blocks):
        if needs_grad(q, k, v):
            return SelectedAttention.apply(q, k, v, blocks, selection, True)
        return _run(q, k, v, blocks, selection)
    if is_transformed() and any(unwrapped(t) is not t for t in (q, k, v, blocks)):
        raise UnsupportedError("selected_attention has no rules for torch.func: use torch.autograd.grad")
    return torch.ops.torch_flexattn.selected_forward(q, k, v, blocks, *selection)


class SelectedAttention(torch.autograd.Function):
    """The derivative; ``plainly``: the kernels are called, not the ops."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, selection: Selection, plainly: bool
    ) -> Results:
        out, lse = _run(q, k, v, blocks, selection) if plainly else _below(q, k, v, blocks, selection)
        ctx.save_for_backward(q, k, v, out, lse, blocks)
        ctx.selection, ctx.plainly = selection, plainly
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise UnsupportedError(
                "selected_attention has no second derivative here: use backend='reference', which is dense, instead"
            )
        grad_out, grad_lse = grad_outputs
        q, k, v, out, lse, blocks = ctx.saved_tensors
        tensors = (torch.zeros_like(out) if grad_out is None else grad_out, grad_lse, q, k, v, out, lse, blocks)
        if ctx.plainly:
            found = _run_backward(*tensors, ctx.selection)
        else:
            found = torch.ops.torch_flexattn.selected_backward(*tensors, *ctx.selection)
        return *found, None, None, None


def _kernels(q: Tensor, backend: Backend) -> ModuleType:
    name = kernels_for(backend, q.device, q.dtype, False).name
    COUNTS.kernel = name
    if name == "triton":
        from ..kernels.triton import selected

        return selected
    from ..kernels.cpu import selected as blockwise

    return blockwise


def _run(q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, selection: Selection) -> Results:
    with torch.no_grad(), outside_autocast(q), on_device(q):
        return _kernels(q, selection.backend).forward(q, k, v, blocks, **selection.options())


def _run_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    blocks: Tensor,
    selection: Selection,
) -> tuple[Tensor, Tensor, Tensor]:
    with torch.no_grad(), outside_autocast(q), on_device(q):
        kernels = _kernels(q, selection.backend)
        return kernels.backward(grad_out, grad_lse, q, k, v, out, lse, blocks, **selection.options())


def _below(q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, selection: Selection) -> Results:
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.torch_flexattn.selected_forward(q, k, v, blocks, *selection)


def _autograd_forward(q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, *options: Any) -> Results:
    selection = Selection(*options)
    if needs_grad(q, k, v):
        return SelectedAttention.apply(q, k, v, blocks, selection, False)
    return _below(q, k, v, blocks, selection)


def _forward(q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, *options: Any) -> Results:
    return _run(q, k, v, blocks, Selection(*options))


def _backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    blocks: Tensor,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    return _run_backward(grad_out, grad_lse, q, k, v, out, lse, blocks, Selection(*options))


def _ordered_like(q: Tensor, width: Any) -> Tensor:
    order = sorted(range(3), key=lambda d: -q.stride(d))
    return torch.empty_permuted((*q.shape[:3], width), (*order, 3), dtype=q.dtype, device=q.device)


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, *options: Any) -> Results:
    lse = q.new_empty(q.shape[:3], dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)
    return _ordered_like(q, v.shape[-1]), lse


def _fake_backward(
    grad_out: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return _ordered_like(q, q.shape[-1]), k.new_empty(k.shape), v.new_empty(v.shape)


LIBRARY.impl("selected_forward", _autograd_forward, "Autograd")
for _device in ("CPU", "CUDA"):
    LIBRARY.impl("selected_forward", _forward, _device)
    LIBRARY.impl("selected_backward", _backward, _device)
torch.library.register_fake("torch_flexattn::selected_forward", _fake_forward, lib=LIBRARY)
torch.library.register_fake("torch_flexattn::selected_backward", _fake_backward, lib=LIBRARY)
