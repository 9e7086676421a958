"""Checks of what factories of masks and score modifications are given. Each error names the argument and its value."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from .errors import InputError, KindError

IntTable = Tensor | Sequence[int]
"""Integers a token: a tensor, or numbers of which one is made."""
MOST = 2**31 - 1


def check_count(name: str, value: object, least: int = 0) -> int:
    """``value`` as an int, which is at least ``least``.

    Raises:
        KindError: no integer.
        InputError: too small, or beyond int32.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        # An int as it is, since in a compiled graph it may stand for any.
        number = value if isinstance(value, int) else operator.index(value)  # type: ignore[arg-type]
    except (TypeError, RuntimeError):
        raise KindError(f"{name} must be an integer, got {value!r}") from None
    if not least <= number <= MOST:
        raise InputError(f"{name} must be an integer of at least {least} and below 2**31, got {number}")
    return number


def check_number(name: str, value: object, *, positive: bool = False) -> float:
    """``value`` as a finite float.

    Raises:
        KindError: no number.
        InputError: not finite, or not above 0 where it has to be.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise KindError(f"{name} must be a number, got {value!r}")
    if not abs(value) < float("inf") or (positive and value <= 0):
        raise InputError(f"{name} must be a {'positive' if positive else 'finite'} number, got {value!r}")
    return float(value)


def check_per_axis(name: str, value: object, axes: int, least: int = 1) -> tuple[int, ...]:
    """One number an axis; a single one stands for all.

    Raises:
        InputError: another number of numbers, or one that is too small.
    """
    if not isinstance(value, tuple | list):
        return (check_count(name, value, least),) * axes
    if len(value) != axes:
        raise InputError(f"{name} must have {axes} numbers, one an axis, got {tuple(value)}")
    return tuple(check_count(f"{name}[{axis}]", number, least) for axis, number in enumerate(value))


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """``value`` is one of ``choices``.

    Raises:
        InputError: it is not.
    """
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_int_table(name: str, value: IntTable, shapes: str, dims: Sequence[int]) -> Tensor:
    """A tensor of int32, of so many dimensions. One that is int32 already is taken as it is, not copied.

    Args:
        name: of the argument.
        value: what was given.
        shapes: the allowed shapes, as the error says them: ``"[S] or [B, S]"``.
        dims: the allowed numbers of dimensions.

    Raises:
        KindError: no tensor of integers.
        InputError: another number of dimensions, or a value beyond int32.
    """
    table = _tensor(name, value)
    if table.dtype == torch.bool or table.is_floating_point() or table.is_complex():
        raise KindError(f"{name} must hold integers, got {table.dtype}")
    _check_dims(name, table, shapes, dims)
    if table.dtype == torch.int64 and is_read(table) and table.numel() and int(table.abs().max()) > MOST:
        raise InputError(f"{name} must hold integers below 2**31, got {int(table.abs().max())}")
    return table.to(torch.int32)


def check_bool_table(name: str, value: Tensor, shapes: str, dims: Sequence[int]) -> Tensor:
    """A tensor of bool; arguments and errors as :func:`check_int_table`."""
    table = _tensor(name, value)
    if table.dtype != torch.bool:
        raise KindError(f"{name} must be a tensor of bool, got {table.dtype}")
    _check_dims(name, table, shapes, dims)
    return table


def check_float_table(name: str, value: Tensor, shapes: str, dims: Sequence[int]) -> Tensor:
    """A floating-point tensor, itself: gradients reach it. Arguments and errors as :func:`check_int_table`."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else repr(value)
        raise KindError(f"{name} must be a floating-point tensor {shapes}, got {kind}")
    _check_dims(name, value, shapes, dims)
    return value


def check_increasing(name: str, cu_seqlens: Tensor, *, reach: int | None = None) -> None:
    """Bounds begin at 0 and never fall. On other devices than the CPU nothing is checked: that would wait for them.

    Raises:
        InputError: they do not, or the last is not ``reach``.
    """
    if cu_seqlens.numel() < 1:
        raise InputError(f"{name} must hold 0 and the end of every sequence, got {cu_seqlens.tolist()}")
    if not is_read(cu_seqlens):
        return
    if cu_seqlens[0] != 0 or bool((cu_seqlens[1:] < cu_seqlens[:-1]).any()):
        raise InputError(f"{name} must begin with 0 and never fall, got {_shown(cu_seqlens)}")
    if reach is not None and cu_seqlens[-1] != reach:
        raise InputError(f"{name} must end with the number of tokens, {reach}, got {int(cu_seqlens[-1])}")


def check_range(name: str, table: Tensor, least: int, most: int | None = None) -> None:
    """All numbers of a table on the CPU lie in a range; on other devices nothing is checked.

    Raises:
        InputError: one does not.
    """
    if not is_read(table) or table.numel() == 0:
        return
    low, high = int(table.min()), int(table.max())
    if low < least:
        raise InputError(f"{name} must hold numbers of at least {least}, got {low}")
    if most is not None and high > most:
        raise InputError(f"{name} must hold numbers of at most {most}, got {high}")


def is_read(table: Tensor) -> bool:
    """Whether the numbers of a table are looked at: not those that a device or a compiled graph has still to give."""
    return table.device.type == "cpu" and not torch.compiler.is_compiling()


def _tensor(name: str, value: IntTable) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, list | tuple):
        raise KindError(f"{name} must be a tensor, got {value!r}")
    try:
        return torch.tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise KindError(f"{name} must be a tensor or a list of integers, got {value!r}") from None


def _check_dims(name: str, table: Tensor, shapes: str, dims: Sequence[int]) -> None:
    if table.dim() not in dims:
        raise InputError(f"{name} must have the shape {shapes}, got {list(table.shape)}")


def _shown(table: Tensor) -> str:
    numbers = table.tolist()
    return str(numbers) if len(numbers) <= 12 else f"[{', '.join(map(str, numbers[:12]))}, …]"
