"""Which heads and batch entries are computed together: all those with the same rows of blocks, as many as a tile holds.

Tensors are seen in six dimensions, ``[key batch, key heads, copies, group, rows, width]``: ``copies`` is the number of
query batch entries that share one of keys (``B`` where the keys have one entry for all, else 1), ``group`` that of
query heads that share a key head. What lies in ``copies``, ``group`` and rows goes through one matrix product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

FEWEST_KEYS = 512
"""Keys of a step for which heads make room, if there are as many."""


@dataclass(frozen=True)
class Lanes:
    """Slices of the first four dimensions, and what holds for all of them.

    Attributes:
        batch: of the key batch.
        heads: of the key heads.
        copies: of the query batch entries that share keys.
        group: of the query heads that share a key head.
        first_row: number of the first row of blocks.
        q_offset: what is added to the number of a query.
        num_keys: how many keys there are.
    """

    batch: slice
    heads: slice
    copies: slice
    group: slice
    first_row: int
    q_offset: int
    num_keys: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return _length(self.batch), _length(self.heads), _length(self.copies), _length(self.group)

    @property
    def products(self) -> int:
        """Matrix products side by side."""
        return _length(self.batch) * _length(self.heads)


def by_lane(x: Tensor, key_batch: int, key_heads: int) -> Tensor:
    """``[B, Hq, …]`` as ``[key batch, key heads, copies, group, …]``, without a copy."""
    batch, heads = x.shape[:2]
    split = x.unflatten(1, (key_heads, heads // key_heads)).unflatten(0, (key_batch, batch // key_batch))
    return split.transpose(1, 2)


def lanes(
    shape: tuple[int, int, int, int],
    *,
    rows: int,
    row_stride: int,
    mask_shape: tuple[int, int],
    q_offset: Sequence[int],
    num_keys: Sequence[int],
    tile: int,
) -> Iterator[Lanes]:
    """Cut all heads and batch entries into lanes.

    Args:
        shape: the first four dimensions.
        rows: queries of a step.
        row_stride: rows of blocks of one head of the mask.
        mask_shape: batch entries and heads of the mask, 1 where it is the same for all.
        q_offset: one for all batch entries, or one each.
        num_keys: one for all batch entries, or one each.
        tile: most scores of a step.
    """
    key_batch, key_heads, copies, group = shape
    of_batch = mask_shape[0] > 1 or len(q_offset) > 1 or len(num_keys) > 1
    of_head = mask_shape[1] > 1
    room = max(1, tile // (rows * FEWEST_KEYS))
    for b in range(key_batch * copies) if of_batch else [None]:
        for h in range(key_heads * group) if of_head else [None]:
            bounds = [(0, size) for size in shape]
            if b is not None:
                bounds[0 if copies == 1 else 2] = (b, b + 1)
            if h is not None:
                bounds[1], bounds[3] = (h // group, h // group + 1), (h % group, h % group + 1)
            row = (0 if b is None or mask_shape[0] == 1 else b) * mask_shape[1] + (h or 0)
            entry = b or 0
            offset, keys = q_offset[entry % len(q_offset)], num_keys[entry % len(num_keys)]
            for part in _cut(bounds, room):
                yield Lanes(*part, first_row=row * row_stride, q_offset=offset, num_keys=keys)


def _cut(bounds: list[tuple[int, int]], room: int) -> Iterator[list[slice]]:
    """Boxes of at most ``room`` lanes: whole in the inner dimensions as far as possible.

    Keys of a box are neighbours in memory: it is cut in the key batch only where it has all key heads.
    """
    steps = [1, 1, 1, 1]
    for d in (3, 2, 1, 0):
        size = bounds[d][1] - bounds[d][0]
        steps[d] = max(1, min(size, room))
        room = room // size if size <= room else 1
    boxes: list[list[slice]] = [[]]
    for (first, end), step in zip(bounds, steps):
        boxes = [[*box, slice(at, min(at + step, end))] for box in boxes for at in range(first, end, step)]
    yield from boxes


def _length(part: slice) -> int:
    return part.stop - part.start
