"""On a GPU: the kernels of its architecture where they can serve, the portable ones elsewhere."""

from __future__ import annotations

import functools
import warnings
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .launch.again import Again
from .launch.launch import DoesNotFit
from .triton import attention as portable
from .triton import decode
from .triton.layout import last_together

Results = tuple[Tensor, Tensor, Tensor | None]


def takes_mods(q: Tensor, dropout_p: float) -> bool:
    """Whether the kernels for queries find the blocks of a mask themselves."""
    return decode.serves(q, None, dropout_p)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kv_lens: Tensor | None,
    dropout_p: float,
    seed: int,
    check: bool,
    again: Again | None = None,
    **options: Any,
) -> Results:
    """See ``kernels.cpu.forward``; ``again`` learns how the call is made with other tensors like these."""
    if again is not None:  # whose inputs have to be told apart
        q, k, v, options["sinks"] = (t if t is None else t.detach() for t in (q, k, v, options["sinks"]))
    q, k, v = last_together(q), last_together(k), last_together(v)
    if decode.serves(q, options["mask"], dropout_p):
        return decode.decode(q, k, v, kv_lens=kv_lens, again=again, **options)
    hopper = _hopper(q.device)
    if hopper is not None and hopper.serves_forward(q, k, v, options["mask"], kv_lens, dropout_p):
        try:
            return hopper.forward(q, k, v, again=again, **options)
        except DoesNotFit as error:
            _say_slower(error)
    return portable.forward(
        q, k, v, kv_lens=kv_lens, dropout_p=dropout_p, seed=seed, check=check, again=again, **options
    )


def backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    kv_lens: Tensor | None,
    dropout_p: float,
    seed: int,
    check: bool,
    **options: Any,
) -> Any:
    """See ``kernels.cpu.backward``."""
    grad_out, q, k, v = (last_together(t) for t in (grad_out, q, k, v))
    inputs = (grad_out, grad_lse, q, k, v, out, lse)
    hopper = _hopper(q.device)
    if hopper is not None and hopper.serves_backward(grad_out, q, k, v, options["mask"], kv_lens, dropout_p):
        try:
            return hopper.backward(*inputs, **options)
        except DoesNotFit as error:
            _say_slower(error)
    return portable.backward(*inputs, kv_lens=kv_lens, dropout_p=dropout_p, seed=seed, check=check, **options)


def _say_slower(error: DoesNotFit) -> None:
    """A modification may need shared memory of its own."""
    warnings.warn(
        f"attention takes the portable kernels, which are slower: those of Hopper do not fit ({error})", stacklevel=3
    )


@functools.lru_cache(maxsize=64)
def _hopper(device: torch.device) -> ModuleType | None:
    """The launchers of Hopper's kernels, on such a GPU."""
    if device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(device)[0] != 9:
        return None
    from .hopper import attention

    return attention
