"""The factors of a pool of 8 bits: one for the keys and one for the values of each head."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import InputError, KindError
from ..fp8 import FP8


def pool_descales(
    k_descale: float | Tensor | None,
    v_descale: float | Tensor | None,
    heads: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor | None:
    """Float32 ``[2, heads]``: of keys and of values; ``None`` for pools of more bits.

    Raises:
        InputError: given for a pool of more bits; another shape; a number that is not positive and finite.
        KindError: neither a number nor a tensor of floats.
    """
    named = {"k_descale": k_descale, "v_descale": v_descale}
    if dtype != FP8:
        for name, given in named.items():
            if given is not None:
                raise InputError(f"{name} is for pools of {FP8}, but dtype is {dtype}")
        return None
    factors = []
    for name, given in named.items():
        given = 1.0 if given is None else given
        if not isinstance(given, Tensor):
            if isinstance(given, bool) or not isinstance(given, int | float):
                raise KindError(f"{name} must be a number or a tensor of floats, got {given!r}")
            if not (given > 0 and math.isfinite(given)):
                raise InputError(f"{name} must be positive and finite, got {given}")
            factors.append(torch.full((heads,), float(given), device="cpu"))
            continue
        if not given.is_floating_point():
            raise KindError(f"{name} must be a number or a tensor of floats, got {given.dtype}")
        if given.shape not in ((), (heads,)):
            raise InputError(f"{name} must have shape ({heads},), one a head, or (), got {tuple(given.shape)}")
        own = given.detach().float().cpu()
        if not bool(((own > 0) & own.isfinite()).all()):
            raise InputError(f"{name} must be positive and finite, got {own.tolist()}")
        factors.append(own.expand(heads))
    return torch.stack(factors).to(device)
