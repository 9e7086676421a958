"""How many heads the programs of a grid take together: see ``schedule``."""

from __future__ import annotations

import functools

import torch

SHARE = 3
"""Of the second-level cache, a third is for what heads of a section read."""


@functools.lru_cache(maxsize=1024)
def section(head_bytes: int, heads: int, group: int, device: torch.device) -> int:
    """How many heads are taken together.

    Args:
        head_bytes: what programs of a head read again and again.
        heads: in all.
        group: heads that read the same, and stay together.
        device: whose cache it is.
    """
    room = torch.cuda.get_device_properties(device).L2_cache_size // SHARE
    return min(heads, max(1, room // max(head_bytes, 1)) * group)
