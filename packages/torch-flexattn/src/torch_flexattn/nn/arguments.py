"""Checks of what layers are made with and called on. Each error names the argument and its value."""

from __future__ import annotations

from torch import Tensor

from ..errors import InputError
from ..factory_arguments import check_count


def check_sizes(**sizes: int) -> None:
    """Each an integer of at least 1.

    Raises:
        InputError: smaller.
        KindError: no integer.
    """
    for name, size in sizes.items():
        check_count(name, size, 1)


def check_share(name: str, share: float) -> None:
    """A share below 1.

    Raises:
        InputError: it is none.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise InputError(f"{name} must be in [0, 1), got {share!r}")


def check_features(name: str, x: Tensor, shape: str, dims: int, width: int) -> None:
    """A tensor of so many dimensions, ``width`` the last.

    Raises:
        InputError: another shape.
    """
    if x.dim() != dims or x.shape[-1] != width:
        raise InputError(f"{name} must have the shape {shape} with {width} features, got {tuple(x.shape)}")
