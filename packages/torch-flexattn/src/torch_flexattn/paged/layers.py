"""The caches of a model's layers, which are told the same things."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InputError, KindError
from .allocator import SeqId
from .cache import PagedKVCache


class Layers:
    """Caches of equal sizes and equal contents, so that a sequence has one number and as many pages in each.

    What the first refuses, none does; what it does, the others can do as well.

    Args:
        cache: one, or one a layer.

    Raises:
        InputError: none, one twice, or caches that differ in sizes or in what they hold.
        KindError: something else than a cache.
    """

    def __init__(self, cache: PagedKVCache | Sequence[PagedKVCache]) -> None:
        several = isinstance(cache, Sequence)
        self.caches: tuple[PagedKVCache, ...] = tuple(cache) if isinstance(cache, Sequence) else (cache,)
        if not self.caches:
            raise InputError(f"cache must be a PagedKVCache, or one a layer, got {cache!r}")
        for number, own in enumerate(self.caches):
            name = f"cache[{number}]" if several else "cache"
            if not isinstance(own, PagedKVCache):
                raise KindError(f"{name} must be a PagedKVCache, got {type(own).__name__}")
            if any(own is other for other in self.caches[:number]):
                raise InputError(f"{name} is there twice: each layer has a cache of its own, got {own!r}")
            if self._held(own) != self._held(self.caches[0]):
                raise InputError(
                    f"{name} must have the sizes and sequences of cache[0], got {own!r} with {own.stats()} beside "
                    f"{self.caches[0]!r} with {self.caches[0].stats()}"
                )
        if len({self._next(own) for own in self.caches}) > 1:
            raise InputError(f"cache must hold caches that had the same calls, got {cache!r}: make new ones")

    @property
    def max_tokens(self) -> int:
        """Of one sequence, at most."""
        return self.caches[0].max_tokens

    def allocate(self) -> SeqId:
        """A new sequence without tokens."""
        first, *_ = [own.allocate() for own in self.caches]
        return first

    def share_prefix(self, seq: SeqId, tokens: int) -> SeqId:
        """A new sequence with the first tokens of another."""
        first, *_ = [own.share_prefix(seq, tokens) for own in self.caches]
        return first

    def extend(self, seq: SeqId, tokens: int) -> None:
        """Pages in reserve."""
        for own in self.caches:
            own.extend(seq, tokens)

    def advance(self, seqs: Sequence[SeqId], tokens: int) -> None:
        """Room for tokens that are written next."""
        for own in self.caches:
            own.advance(seqs, tokens)

    def trim(self, seq: SeqId, tokens: int) -> None:
        """Forget all tokens but the first."""
        for own in self.caches:
            own.trim(seq, tokens)

    def free(self, seq: SeqId) -> None:
        """The sequence is no more."""
        for own in self.caches:
            own.free(seq)

    def _held(self, cache: PagedKVCache) -> tuple[int, ...]:
        stats = cache.stats()
        return cache.page_size, cache.max_tokens, cache.lengths.shape[0], *stats[:5]

    def _next(self, cache: PagedKVCache) -> SeqId:
        """The number of a new sequence; numbers are not used again, so this one is tried and given back."""
        if len(self.caches) == 1:
            return SeqId(0)
        seq = cache.allocate()
        cache.free(seq)
        return seq
