"""Numbers that a score modification reads: one in all, or one a head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..errors import InputError, KindError
from ..factory_arguments import check_float_table, check_number

Read = Callable[..., Any]


def per_head(name: str, table: Tensor) -> Read:
    """``(h) -> table[h]`` of a floating-point tensor ``[H]``; one of ``[1]`` is for all heads.

    Raises:
        InputError: another shape, or empty.
        KindError: no floating-point tensor.

    Example:
        >>> import torch
        >>> per_head("slopes", torch.tensor([0.5, 0.25]))(torch.tensor(1))
        tensor(0.2500)
    """
    check_float_table(name, table, "[H]", [1])
    if table.shape[0] == 0:
        raise InputError(f"{name} must hold a number a head, got {list(table.shape)}")
    if table.shape[0] == 1:
        return lambda h: table[0]
    return lambda h: table[h]


def one_number(name: str, value: float | Tensor, *, positive: bool = False) -> Read:
    """``() -> value`` of a number or a floating-point tensor that holds one.

    Raises:
        InputError: not finite, not positive where it has to be, or a tensor of more than one.
        KindError: neither a number nor a floating-point tensor.

    Example:
        >>> one_number("t", 2)()
        2.0
    """
    if not isinstance(value, Tensor):
        number = check_number(name, value, positive=positive)
        return lambda: number
    if not value.is_floating_point():
        raise KindError(f"{name} must be a number or a floating-point tensor, got {value.dtype}")
    if value.numel() != 1 or value.dim() > 1:
        raise InputError(f"{name} must be a number or a tensor of one, got {list(value.shape)}")
    if value.dim():
        return lambda: value[0]
    return lambda: value
