"""Captured tensors that are read at an index mixing both sides: between which values an entry lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..mods import MaskMod
from ..program import NAMES
from .alike import as_tensor, choose, either
from .count_table import LARGEST, CountTable
from .interval import Range, Truth, Value, unknown
from .range_table import RangeTable
from .sides import Sides

Index = tuple[Tensor, Tensor, Tensor | bool]
"""Least and greatest index, and where it is not known to be in range."""


class Reads:
    """The reads of a mask, with the tables that answer them.

    Args:
        mod: the mask.
        sides: its division; its inner reads are answered here.
        device: where boxes are.
    """

    def __init__(self, mod: MaskMod, sides: Sides, device: torch.device) -> None:
        self._mod, self._sides, self._device = mod, sides, device
        self._tables: dict[int, RangeTable] = {}
        self._counts: dict[int, CountTable] = {}

    def run(self, number: int, args: list[Any]) -> Value:
        """What a read gives, its indices being in the ranges ``args``."""
        node = self._sides.program.nodes[number]
        tensor = self._mod.captures[int(node.value or 0)]
        if tensor.numel() == 0:
            return unknown(node.dtype)
        indices = [self._inside(*of) for of in zip(node.args, args, tensor.shape)]
        outside: Tensor | bool = False
        for _, _, bad in indices:
            outside = either(outside, bad)
        if _are_points(args[:-1]):
            return self._over_range(tensor, indices, outside)
        if tensor.dtype == torch.bool and tensor.numel() <= LARGEST and _are_points(args[:-2]):
            return self._over_rectangle(tensor, indices, outside)
        return _at_points(tensor, indices, outside)

    def _over_range(self, tensor: Tensor, indices: list[Index], outside: Tensor | bool) -> Value:
        """Only the last index is a range."""
        if id(tensor) not in self._tables:
            self._tables[id(tensor)] = RangeTable(tensor)
        row = _ravelled(tensor.shape[:-1], indices[:-1])
        low, high, _ = indices[-1]
        return _bounded(tensor.dtype, *self._tables[id(tensor)].between(low, high, row), outside)

    def _over_rectangle(self, tensor: Tensor, indices: list[Index], outside: Tensor | bool) -> Value:
        """The last two indices are ranges, of a table of bools."""
        if id(tensor) not in self._counts:
            self._counts[id(tensor)] = CountTable(tensor)
        plane = _ravelled(tensor.shape[:-2], indices[:-2])
        some, every = self._counts[id(tensor)].between(indices[-2][:2], indices[-1][:2], plane)
        return Truth(either(some, outside), either(~every, outside))

    def _inside(self, arg: int, index: Any, size: int) -> Index:
        """An index as eager PyTorch reads it, from 0 to ``size - 1``, and where it is not known to be in range."""
        low, high = (as_tensor(x, self._device) for x in (index.low, index.high))
        known: Any = self._sides.known[arg]
        if known.low >= 0 and known.high < size:
            return low, high, False
        from_end = (high < 0) * size
        low, high = low + from_end, high + from_end
        return low.clamp(0, size - 1), high.clamp(0, size - 1), (low < 0) | (high >= size)

    def may_be_outside(self) -> bool:
        """Whether an index may be out of range, as far as sizes tell."""
        for number in self._sides.inner:
            node = self._sides.program.nodes[number]
            if node.op == "gather":
                for arg, size in zip(node.args, self._mod.captures[int(node.value or 0)].shape):
                    known: Any = self._sides.known[arg]
                    if known.low < -size or known.high >= size:
                        return True
        return False


def _are_points(args: Sequence[Value]) -> bool:
    return all(isinstance(a, Range) and a.is_point for a in args)


def _ravelled(shape: Sequence[int], indices: Sequence[Index]) -> Tensor | int:
    """Leading indices as one."""
    place: Tensor | int = 0
    for size, (low, _, _) in zip(shape, indices):
        place = place * size + low
    return place


def _at_points(tensor: Tensor, indices: list[Index], outside: Tensor | bool) -> Value:
    """Where every index is one number: the entry; elsewhere anything."""
    for low, high, _ in indices:
        outside = either(outside, low != high)
    value = tensor[tuple(low for low, _, _ in indices)]
    return _bounded(tensor.dtype, value, value, outside)


def _bounded(dtype: torch.dtype, least: Tensor, greatest: Tensor, outside: Tensor | bool) -> Value:
    """The entries between, or anything."""
    if dtype == torch.bool:
        return Truth(either(greatest != 0, outside), either(least == 0, outside))
    if not dtype.is_floating_point:
        least, greatest = least.long(), greatest.long()
    anything: Any = unknown(NAMES[dtype])
    return Range(choose(outside, anything.low, least), choose(outside, anything.high, greatest))
