"""What a paged cache holds, in numbers."""

from __future__ import annotations

from typing import NamedTuple


class CacheStats(NamedTuple):
    """What a cache holds.

    Attributes:
        sequences: that live.
        tokens: of all of them; those that sequences share count for each.
        pages: of the pool.
        free_pages: that no sequence holds.
        shared_pages: that several hold.
        memory_bytes: of the pools and of the table of pages.

    Example:
        >>> from torch_flexattn import PagedKVCache
        >>> PagedKVCache(num_pages=4, page_size=16, num_kv_heads=1, head_dim=8, max_seqs=2).stats().free_pages
        4
    """

    sequences: int
    tokens: int
    pages: int
    free_pages: int
    shared_pages: int
    memory_bytes: int
