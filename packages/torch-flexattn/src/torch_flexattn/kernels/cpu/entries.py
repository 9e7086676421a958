"""The batch entries of a call, each as it would be in a call of its own, whatever the others are.

Libraries of matrix products choose how to sum by the sizes of a whole batch, and rows of keys that are padding change
sizes, too: so an entry gets tensors of its own, in one layout and aligned, of the keys that it has, and the part of the
block mask that a mask of its own would be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...reindex import Always, Offset, reindexed

if TYPE_CHECKING:
    from ...block_mask import BlockMask

Entry = tuple[tuple[Tensor, Tensor, Tensor], "BlockMask | None", int]
"""Query, key and value; the blocks; what is added to the number of a query."""


def entries(
    q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | None, q_offset: Tensor | int, kv_lens: Tensor | None
) -> Iterator[Entry]:
    """Arguments as those of ``forward``; waits for the device where there are numbers on it."""
    batch, keys = q.shape[0], k.shape[2]
    offsets = q_offset.tolist() if isinstance(q_offset, Tensor) else [q_offset] * batch
    lengths = [keys] * batch if kv_lens is None else [min(n, keys) for n in kv_lens.tolist()]
    for number, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        of_keys = number if k.shape[0] > 1 else 0
        features = _own(q, number, q.shape[2]), _own(k, of_keys, length), _own(v, of_keys, length)
        yield features, None if mask is None else _blocks(mask, number, offset, length), offset


def _own(x: Tensor, number: int, length: int) -> Tensor:
    return x[number : number + 1, :, :length].clone(memory_format=torch.contiguous_format)


def _blocks(mask: BlockMask, number: int, offset: int, keys: int) -> BlockMask:
    """The blocks of one entry, of its own keys; the mod stays, as it sees the entry's number and offset."""
    seen = None if mask.mod is None else reindexed(mask.mod, {"b": Always(number), "q": Offset(offset)})
    own = replace(mask, mod=seen)
    if own.shape[0] > 1:
        own = own[number : number + 1]
    if keys < own.shape[3]:
        own = own.crop(own.shape[2], keys)
    return replace(own, mod=mask.mod)
