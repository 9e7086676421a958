"""How many heads the programs of a grid take together: see ``schedule``."""

from __future__ import annotations

import functools

import torch

SHARE = 3
"""Of the second-level cache, a third is for what heads of a section read."""
ROUNDS = 2
"""Programs of a section for each multiprocessor: more heads end no more together than these."""


@functools.lru_cache(maxsize=1024)
def section(head_bytes: int, blocks: int, heads: int, group: int, device: torch.device) -> int:
    """How many heads are taken together.

    Args:
        head_bytes: what programs of a head read again and again.
        blocks: programs of a head.
        heads: in all.
        group: heads that read the same, and stay together.
        device: whose cache it is.
    """
    found = torch.cuda.get_device_properties(device)
    room = found.L2_cache_size // SHARE // max(head_bytes, 1)
    enough = -(-ROUNDS * found.multi_processor_count // max(blocks * group, 1))
    return min(heads, max(1, min(room, enough)) * group)
