"""Requests served over a paged cache by a model that reads every token it attends to, and without a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch_flexattn import BatchStep, ContinuousBatcher, PagedKVCache


def following(tokens: list[int]) -> int:
    """The token after others: it depends on all of them and on their order."""
    return sum((place + 3) * token for place, token in enumerate(tokens)) % 1009


def alone(prompt: list[int], count: int) -> list[int]:
    """A prompt and what follows it."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(following(tokens))
    return tokens


def small_cache(pages: int, max_seqs: int = 4) -> PagedKVCache:
    """Pages of 16 tokens, each a number."""
    return PagedKVCache(pages, 16, num_kv_heads=1, head_dim=1, max_seqs=max_seqs)


class Served:
    """A batcher, its cache, and the tokens of its requests.

    Attributes:
        tokens: of each request, prompt and output.
        finished: in the order in which they were.
    """

    def __init__(self, pages: int, max_seqs: int = 4, **options: Any) -> None:
        self.cache = small_cache(pages, max_seqs)
        self.batcher = ContinuousBatcher(self.cache, **options)
        self.tokens: dict[int, list[int]] = {}
        self.finished: list[int] = []

    def add(self, prompt: list[int], count: int, **options: Any) -> int:
        number = self.batcher.add(len(prompt), count, **options)
        self.tokens[number] = list(prompt)
        return number

    def step(self, ended: tuple[int, ...] = ()) -> BatchStep:
        """One step: write the tokens, read all that the pages hold, sample."""
        step = self.batcher.schedule()
        for chunk in step.chunks:
            own = self.tokens[chunk.request]
            new = torch.tensor(own[chunk.start : chunk.stop], dtype=torch.float32).view(1, 1, -1, 1)
            assert new.shape[2] == chunk.tokens
            self.cache.write([chunk.seq], new, new)
        for chunk in step.chunks:
            own = self.tokens[chunk.request]
            pages = self.cache.block_table([chunk.seq])[0].long()
            read = self.cache.v_pages[pages].flatten()[: self.cache.length(chunk.seq)].int().tolist()
            assert read == own[: chunk.stop]
            if chunk.samples:
                own.append(following(read))
        self.finished += self.batcher.update(ended)
        return step

    def drain(self, most: int = 10_000) -> list[BatchStep]:
        """Steps until no request is live."""
        steps = []
        while self.batcher.live:
            steps.append(self.step())
            assert len(steps) < most
        return steps
