"""Keys and values of sequences that grow, kept in pages: for generation."""

from .allocator import SeqId
from .batch_step import BatcherStats, BatchStep, Chunk
from .batcher import ContinuousBatcher
from .cache import PagedKVCache
from .physical import to_physical
from .stats import CacheStats

__all__ = [
    "BatchStep",
    "BatcherStats",
    "CacheStats",
    "Chunk",
    "ContinuousBatcher",
    "PagedKVCache",
    "SeqId",
    "to_physical",
]
