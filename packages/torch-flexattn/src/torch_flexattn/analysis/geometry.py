"""The blocks of a mask: how many there are and which positions lie in them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """Sizes of a mask and its blocks.

    Attributes:
        shape: batches, heads, queries, keys; batches and heads are 1 unless the mask depends on them.
        block: queries and keys of a block.
        device: where the mask is built.
    """

    shape: tuple[int, int, int, int]
    block: tuple[int, int]
    device: torch.device

    @property
    def planes(self) -> int:
        """Masks of queries by keys: one a batch and head."""
        return self.shape[0] * self.shape[1]

    @property
    def rows(self) -> int:
        """Rows of blocks of a plane."""
        return -(-self.shape[2] // self.block[0])

    @property
    def columns(self) -> int:
        """Columns of blocks of a plane."""
        return -(-self.shape[3] // self.block[1])

    def batch_and_head(self, plane: Tensor) -> dict[str, Tensor]:
        """Index of batch and of head of planes, int32 ``[n, 1, 1]``."""
        plane = plane.to(torch.int32)[:, None, None]
        if self.shape[1] == 1:
            return {"b": plane, "h": torch.zeros_like(plane)}
        if self.shape[0] == 1:
            return {"b": torch.zeros_like(plane), "h": plane}
        return {"b": plane // self.shape[1], "h": plane % self.shape[1]}


@dataclass(frozen=True)
class Blocks:
    """A list of blocks, or of larger boxes.

    Attributes:
        places: int64 ``[n, 3]``: plane, row and column of each.
    """

    places: Tensor

    @classmethod
    def at(cls, plane: Tensor, row: Tensor, column: Tensor) -> Blocks:
        """Blocks from three tensors ``[n]``."""
        return cls(torch.stack([plane, row, column], dim=1))

    @property
    def plane(self) -> Tensor:
        """Batch and head as one number."""
        return self.places[:, 0]

    @property
    def row(self) -> Tensor:
        """Row of blocks inside the plane."""
        return self.places[:, 1]

    @property
    def column(self) -> Tensor:
        """Column of blocks."""
        return self.places[:, 2]

    def __len__(self) -> int:
        return self.places.shape[0]

    def part(self, start: int, stop: int) -> Blocks:
        """Those from ``start`` to before ``stop``."""
        return Blocks(self.places[start:stop])

    def chosen(self, index: Tensor) -> Blocks:
        """Those of numbers ``[m]``."""
        return Blocks(self.places.index_select(0, index))


def constant(numbers: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """A few integers on a device; copied there once."""
    return kept((numbers, device, dtype), lambda: torch.tensor(numbers, dtype=dtype, device=device))


def counted(count: int, step: int, last: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``0, step, 2 · step, …``, ``count`` of them and none above ``last``; made once."""

    def make() -> Tensor:
        return torch.arange(0, count * step, step, dtype=dtype, device=device).clamp_(max=last)

    return kept((count, step, last, dtype, device), make) if count <= LONGEST else make()


def kept(key: Hashable, make: Callable[[], Tensor]) -> Tensor:
    """A tensor that does not change, made once."""
    found = _kept.get(key)
    if found is None:
        found = make()
        if type(found) is Tensor and not found.is_inference():  # not one that a tracing mode made up
            if len(_kept) >= KEPT:
                _kept.clear()
            _kept[key] = found
    return found


_kept: dict[Hashable, Tensor] = {}
KEPT = 256
"""Tensors that are kept."""
LONGEST = 1 << 18
"""Entries of the longest of them."""
