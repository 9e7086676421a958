"""Keys and values of sequences that grow, kept in pages: for generation."""

from .allocator import SeqId
from .cache import PagedKVCache
from .stats import CacheStats

__all__ = ["CacheStats", "PagedKVCache", "SeqId"]
