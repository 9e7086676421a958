"""What the compiler is told of a kernel's arguments: types, ones, and what is a multiple of sixteen."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

POINTERS = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
    torch.bool: "*i1",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
MULTIPLE = 16
CONSTANT = "constexpr"
Kind = tuple[Any, ...]
"""Type, whether a multiple of sixteen, and the value of a constant."""


@dataclass(frozen=True, eq=False)
class Tile:
    """A tensor as the copy engine sees it, and what it copies at once.

    Attributes:
        tensor: the tensor.
        strides: in elements, those of dimensions of size 1 too.
        box: sizes of a tile.
    """

    tensor: Tensor
    strides: tuple[int, ...]
    box: tuple[int, ...]


def kind_of(value: Any, specialised: bool = True) -> Kind:
    """What the compiler is told of an argument; None and 1 become part of the kernel."""
    if isinstance(value, Tensor):
        return POINTERS[value.dtype], value.data_ptr() % MULTIPLE == 0
    if isinstance(value, Tile):
        return "tensordesc", value.tensor.dtype, value.box
    if value is None:
        return CONSTANT, None
    if isinstance(value, bool):
        return "u1", False
    if isinstance(value, float):
        return "fp32", False
    if specialised and value == 1:
        return CONSTANT, 1
    return _integer(value), specialised and value % MULTIPLE == 0


def kinds_of(names: Sequence[str], values: Sequence[Any], unspecialised: Container[str]) -> tuple[Kind, ...]:
    """Those of all arguments."""
    return tuple(kind_of(v, n not in unspecialised) for n, v in zip(names, values))


def _integer(value: int) -> str:
    if -(2**31) <= value < 2**31:
        return "i32"
    return "i64" if value < 2**63 else "u64"
