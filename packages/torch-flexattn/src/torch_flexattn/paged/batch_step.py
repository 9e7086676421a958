"""What a batcher says: the tokens of a step, and its counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .allocator import SeqId


class Chunk(NamedTuple):
    """Tokens of a request that a model is to be run on: ``start`` to before ``stop`` of prompt and output together.

    Attributes:
        request: its number.
        seq: the sequence of the cache that has room for their keys and values, as its last tokens.
        start: position of the first.
        stop: behind the last.
        samples: the model's output at the last one gives the request's next token.

    Example:
        >>> Chunk(request=0, seq=SeqId(3), start=16, stop=20, samples=True).tokens
        4
    """

    request: int
    seq: SeqId
    start: int
    stop: int
    samples: bool

    @property
    def tokens(self) -> int:
        """How many."""
        return self.stop - self.start


@dataclass(frozen=True)
class BatchStep:
    """What a model is to be run on next.

    Attributes:
        decode: one token each of requests whose prompts are done; they fit into one call of the cache.
        prefill: parts of prompts, and of what preempted requests had before.
        preempted: requests whose pages were taken in this step.

    Example:
        >>> step = BatchStep((Chunk(0, SeqId(0), 9, 10, True),), (Chunk(1, SeqId(1), 0, 7, False),))
        >>> step.tokens, [chunk.request for chunk in step.chunks]
        (8, [0, 1])
    """

    decode: tuple[Chunk, ...] = ()
    prefill: tuple[Chunk, ...] = ()
    preempted: tuple[int, ...] = ()

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """All, those of ``decode`` first."""
        return self.decode + self.prefill

    @property
    def tokens(self) -> int:
        """Of all chunks."""
        return sum(chunk.tokens for chunk in self.chunks)


class BatcherStats(NamedTuple):
    """What a batcher holds, and what it did so far.

    Attributes:
        waiting: requests without pages.
        running: requests with pages.
        finished: requests that have all of their tokens, or were ended.
        kept: finished sequences whose pages are kept for prompts that begin alike.
        preemptions: times that a request's pages were taken.
        dropped_tokens: that these requests had in the cache then.
        shared_tokens: that were not computed, because another sequence held them.

    Example:
        >>> BatcherStats(0, 0, 2, 0, 0, 0, 0).finished
        2
    """

    waiting: int
    running: int
    finished: int
    kept: int
    preemptions: int
    dropped_tokens: int
    shared_tokens: int
