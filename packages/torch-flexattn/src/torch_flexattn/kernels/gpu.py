"""On a GPU: the kernels of its architecture where they can serve, the portable ones elsewhere."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

from torch import Tensor

from .fitting import FITTED, run_own
from .launch.again import Again
from .launch.launch import DoesNotFit
from .passes import Pass, hopper_kernels, laid_out
from .triton import attention as portable
from .triton import decode
from .triton.layout import last_together, without_gaps

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
    seed: int | Tensor,
    check: bool,
    again: Again | None = None,
    **options: Any,
) -> Results:
    """See ``kernels.cpu.forward``; ``again`` learns how the call is made with other tensors like these."""
    q, k, v, kv_lens, again = laid_out(q, k, v, kv_lens, again, options)
    if decode.serves(q, options["mask"], dropout_p):
        if not FITTED:
            with suppress(DoesNotFit):
                return decode.decode(q, k, v, kv_lens=kv_lens, again=again, **options)
        return run_own("decode", Pass((q, k, v), options, kv_lens, dropout_p, seed, check, again=again))
    hopper = hopper_kernels(q.device)
    if hopper is not None and hopper.serves_forward(q, k, v, options["mask"], kv_lens, dropout_p):
        try:
            return hopper.forward(q, k, v, again=again, **options)
        except DoesNotFit as error:
            _say_slower(error)
    if not FITTED:
        with suppress(DoesNotFit):
            return portable.forward(
                q, k, v, kv_lens=kv_lens, dropout_p=dropout_p, seed=seed, check=check, again=again, **options
            )
    return run_own("triton", Pass((q, k, v), options, kv_lens, dropout_p, seed, check, again=again))


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
    seed: int | Tensor,
    check: bool,
    deterministic: bool,
    **options: Any,
) -> Any:
    """See ``kernels.cpu.backward``; ``deterministic``: by the kernels that give equal bits in every run."""
    grad_out, q, k, v = (last_together(t) for t in (grad_out, q, k, v))
    inputs = (grad_out, grad_lse, q, k, v, out, lse)
    kv_lens = without_gaps(kv_lens, options)
    if deterministic:
        call = Pass(inputs, options, kv_lens, dropout_p, seed, check, backward=True, deterministic=True)
        return run_own("triton", call)
    hopper = hopper_kernels(q.device)
    if hopper is not None and hopper.serves_backward(grad_out, q, k, v, options["mask"], kv_lens, dropout_p):
        try:
            return hopper.backward(*inputs, **options)
        except DoesNotFit as error:
            _say_slower(error)
    if not FITTED:
        with suppress(DoesNotFit):
            return portable.backward(*inputs, kv_lens=kv_lens, dropout_p=dropout_p, seed=seed, check=check, **options)
    return run_own("triton", Pass(inputs, options, kv_lens, dropout_p, seed, check, backward=True))


def _say_slower(error: DoesNotFit) -> None:
    """A modification may need shared memory of its own."""
    warnings.warn(
        f"attention takes the portable kernels, which are slower: those of Hopper do not fit ({error})", stacklevel=3
    )
