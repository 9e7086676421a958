"""Two parts of a softmax put together, by PyTorch's operations on any device.

With ``lse`` the logarithm of the sum of all exponentials, each part weighs ``exp(lse_r - lse)``. A part whose ``lse``
is −inf saw nothing: its output, which may be anything, is not read.
"""

from __future__ import annotations

import torch
from torch import Tensor

MINUS_INFINITY = float("-inf")


def merged(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the keys of both parts; differentiable.

    Args:
        out: ``[..., Ev]``.
        lse: ``[...]``.
        other: ``[..., Ev]``.
        other_lse: ``[...]``.

    Returns:
        ``out`` in its type, and ``lse``.
    """
    top = torch.maximum(lse.detach(), other_lse.detach())
    top = top.masked_fill(top == MINUS_INFINITY, 0)
    one, two = (_weight(part, top) for part in (lse, other_lse))
    total = one + two
    empty = total == 0
    safe = total.masked_fill(empty, 1)
    whole = _shown(out, lse) * (one / safe).unsqueeze(-1) + _shown(other, other_lse) * (two / safe).unsqueeze(-1)
    return whole.to(out.dtype), (safe.log() + top).masked_fill(empty, MINUS_INFINITY)


def gradients(
    grad_out: Tensor, grad_lse: Tensor, out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor, total: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Those of the four arguments of :func:`merged`, which gave ``total`` as ``lse``; differentiable.

    ``d out_r = w_r · d out`` and ``d lse_r = w_r · (<d out, out_r> - Σ_s w_s · <d out, out_s> + d lse)``.
    """
    top = total.masked_fill(total == MINUS_INFINITY, 0)
    weights = [_weight(part, top) for part in (lse, other_lse)]
    wide = total.dtype
    products = [
        torch.where(of != MINUS_INFINITY, (grad_out.to(wide) * part.to(wide)).sum(-1), 0)
        for part, of in ((out, lse), (other, other_lse))
    ]
    mean = weights[0] * products[0] + weights[1] * products[1]
    of_out, of_other = ((w.unsqueeze(-1) * grad_out).to(part.dtype) for w, part in zip(weights, (out, other)))
    of_lse, of_other_lse = (w * (product - mean + grad_lse) for w, product in zip(weights, products))
    return of_out, of_lse.to(lse.dtype), of_other, of_other_lse.to(other_lse.dtype)


def _weight(lse: Tensor, top: Tensor) -> Tensor:
    return torch.where(lse != MINUS_INFINITY, (lse - top).exp(), 0)


def _shown(out: Tensor, lse: Tensor) -> Tensor:
    return out.masked_fill((lse == MINUS_INFINITY).unsqueeze(-1), 0)
