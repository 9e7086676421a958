"""``ContinuousBatcher``: which requests a model is run on at each step, as pages of the cache allow."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Literal

from ..errors import InputError, OutOfPages, OutOfSequences
from ..factory_arguments import check_choice, check_count
from .allocator import SeqId
from .batch_step import BatcherStats, BatchStep, Chunk
from .cache import PagedKVCache
from .layers import Layers
from .prefixes import Prefixes
from .request import Request, full_blocks

POLICIES = ("fcfs",)


class ContinuousBatcher:
    """Batches that requests join and leave at every step, over a paged cache (continuous batching).

    It knows lengths, not tokens, and runs no model. :meth:`schedule` says which tokens to run a model on and makes room
    for them in the cache; the model calls ``cache.write`` and ``cache.attend``; :meth:`update` counts the step as done.
    A request that has got its last token leaves the cache.

    First come, first served. A request is admitted when there are pages for all of its prompt, and none before those
    that came earlier. In a step, requests that decode get a token each, then prompts get what is left of
    ``token_budget``. Where a request that decodes finds no free page, the youngest loses its own; it is the first to be
    admitted again, and what it had is computed anew. So the oldest always goes on, and every request ends.

    Args:
        cache: a cache, or one for each layer of a model, all of the same sizes and not used by others meanwhile.
        policy: ``"fcfs"``: first come, first served.
        token_budget: tokens of a step, at most; so many requests run at a time, at most.
        prefix_block: tokens of a block of a prompt. Prompts that begin with the same full blocks share their pages, and
            pages of finished requests are kept until others need them. ``None``: no sharing.

    Raises:
        InputError: another policy, a number below 1, caches that differ.
        KindError: no cache; no integer.

    Example:
        >>> import torch
        >>> from torch_flexattn import ContinuousBatcher, PagedKVCache, masks
        >>> cache = PagedKVCache(num_pages=8, page_size=16, num_kv_heads=2, head_dim=8, max_seqs=4)
        >>> batcher = ContinuousBatcher(cache, token_budget=32)
        >>> first, second = batcher.add(40, max_new_tokens=2), batcher.add(5, max_new_tokens=1)
        >>> while batcher.live:
        ...     step = batcher.schedule()
        ...     for chunk in step.chunks:
        ...         k, v = torch.randn(2, 1, 2, chunk.tokens, 8)  # a model's, of tokens chunk.start to chunk.stop
        ...         cache.write([chunk.seq], k, v)
        ...         q = torch.randn(1, 4, chunk.tokens, 8)
        ...         out = cache.attend(q, [chunk.seq], mask_mod=masks.causal())
        ...     print([(chunk.request, chunk.start, chunk.stop) for chunk in step.chunks], batcher.update())
        [(0, 0, 32)] ()
        [(0, 32, 40), (1, 0, 5)] (1,)
        [(0, 40, 41)] (0,)

    Reference:
        Yu et al. 2022 (Orca, OSDI), section 3; Kwon et al. 2023 (PagedAttention, SOSP), section 4.5; Agrawal et al.
        2024 (Sarathi-Serve, OSDI), section 4, for prompts in chunks.
    """

    def __init__(
        self,
        cache: PagedKVCache | Sequence[PagedKVCache],
        policy: Literal["fcfs"] = "fcfs",
        *,
        token_budget: int = 512,
        prefix_block: int | None = None,
    ) -> None:
        check_choice("policy", policy, POLICIES)
        self.policy: Literal["fcfs"] = policy
        self.token_budget = check_count("token_budget", token_budget, 1)
        if prefix_block is not None:
            check_count("prefix_block", prefix_block, 1)
        self.prefix_block = prefix_block
        self._layers = Layers(cache)
        self._prefixes = Prefixes(prefix_block or 1)
        self._live: dict[int, Request] = {}
        self._waiting: deque[Request] = deque()  # both in order of arrival, and all that run came before all that wait
        self._running: dict[int, SeqId] = {}
        self._step: BatchStep | None = None
        self._added = self._finished = self._preemptions = self._dropped = self._shared = 0

    @property
    def live(self) -> int:
        """Requests that are not finished."""
        return len(self._live)

    @property
    def waiting(self) -> tuple[int, ...]:
        """Requests without pages, in order of arrival."""
        return tuple(request.number for request in self._waiting)

    @property
    def running(self) -> tuple[int, ...]:
        """Requests with pages, in order of arrival."""
        return tuple(self._running)

    def add(self, prompt_tokens: int, max_new_tokens: int, *, blocks: Sequence[Hashable] = ()) -> int:
        """A new request, which waits.

        Args:
            prompt_tokens: of its prompt.
            max_new_tokens: it is finished with so many.
            blocks: names of the blocks of ``prefix_block`` tokens of its prompt, in order. Equal ones stand for equal
                tokens and equal blocks before them. One of fewer tokens, at the end, is not shared.

        Returns:
            Its number; they count from 0.

        Raises:
            InputError: a number below 1; more tokens than the cache can hold of a sequence; blocks without
                ``prefix_block``, or more of them than the prompt has.
            KindError: no integer; a block that is not hashable.
        """
        check_count("prompt_tokens", prompt_tokens, 1)
        check_count("max_new_tokens", max_new_tokens, 1)
        most = prompt_tokens + max_new_tokens
        if most - 1 > self._layers.max_tokens:  # nobody asks for keys of the last
            raise InputError(
                f"prompt_tokens and max_new_tokens must be at most {self._layers.max_tokens + 1} together, which the "
                f"cache can hold, got {prompt_tokens} and {max_new_tokens}"
            )
        request = Request(
            self._added, prompt_tokens, most, full_blocks(blocks, prompt_tokens, self.prefix_block), prompt_tokens
        )
        self._added += 1
        self._live[request.number] = request
        self._waiting.append(request)
        return request.number

    def schedule(self) -> BatchStep:
        """The tokens to run a model on next; the cache has room for them, and waits for ``write``.

        There are none only if no request is live.

        Raises:
            OutOfPages: others hold pages of the cache, so that not even one request goes on.
            OutOfSequences: likewise.
            RuntimeError: the step before was not counted as done.
        """
        if self._step is not None:
            raise RuntimeError(f"schedule needs update first: a step of {self._step.tokens} tokens is not counted yet")
        preempted: list[int] = []
        decode = self._decode(preempted)
        budget = self.token_budget - len(decode)
        prefill: list[Chunk] = []
        for number, seq in self._running.items():
            request = self._live[number]
            if budget and request.cached < request.filled:
                tokens = min(budget, request.filled - request.cached)
                self._layers.advance([seq], tokens)  # into pages that it has had from the start
                prefill.append(self._chunk(request, tokens))
                budget -= tokens
        while self._waiting and budget:  # what is left of it, all that run have got a token
            tokens = self._admit(self._waiting[0], budget)
            if not tokens:
                break
            prefill.append(self._chunk(self._waiting.popleft(), tokens))
            budget -= tokens
        step = BatchStep(tuple(decode), tuple(prefill), tuple(preempted))
        self._step = step if step.chunks else None
        return step

    def update(self, ended: Iterable[int] = ()) -> tuple[int, ...]:
        """Count the step that :meth:`schedule` gave as done.

        Args:
            ended: requests that want no more tokens, whether they were in the step or not: they came to the end of
                their text, or nobody waits for them.

        Returns:
            Requests that are finished now, in order of arrival.

        Raises:
            InputError: a request of ``ended`` is not live.
            RuntimeError: there is no step.
        """
        if self._step is None:
            raise RuntimeError("update needs schedule first: there is no step to count")
        done = set(ended)
        for number in done:
            if number not in self._live:
                raise InputError(f"ended must hold requests that are not finished, got {number!r}")
        for chunk in self._step.chunks:
            request = self._live[chunk.request]
            request.cached = chunk.stop
            request.known += chunk.samples
            if request.blocks:
                self._prefixes.add(chunk.seq, request.blocks, request.cached)
            if request.known == request.most:
                done.add(request.number)
        self._step = None
        finished = tuple(sorted(done))
        for number in finished:
            self._finish(self._live.pop(number))
        return finished

    def stats(self) -> BatcherStats:
        """What is held, and what was done so far."""
        return BatcherStats(
            waiting=len(self._waiting),
            running=len(self._running),
            finished=self._finished,
            kept=self._prefixes.kept,
            preemptions=self._preemptions,
            dropped_tokens=self._dropped,
            shared_tokens=self._shared,
        )

    def __repr__(self) -> str:
        return (
            f"ContinuousBatcher({len(self._waiting)} waiting, {len(self._running)} running, policy={self.policy!r}, "
            f"token_budget={self.token_budget}, prefix_block={self.prefix_block})"
        )

    def _decode(self, preempted: list[int]) -> list[Chunk]:
        """One token of each request that decodes. The youngest are preempted until there are pages."""
        while True:
            requests = [self._live[number] for number in self._running]
            requests = [request for request in requests if request.cached >= request.filled]
            try:
                self._layers.advance([self._running[request.number] for request in requests], 1)
            except OutOfPages:
                if self._evict():
                    continue
                if len(self._running) == 1:
                    raise
                preempted.append(self._preempt())
            else:
                return [self._chunk(request, 1) for request in requests]

    def _admit(self, request: Request, budget: int) -> int:
        """Give a request pages and its first tokens, and say how many; 0 if there is no room."""
        while True:
            try:
                return self._place(request, budget)
            except (OutOfPages, OutOfSequences):
                if self._evict():
                    continue
                if not self._running:
                    raise
                return 0

    def _place(self, request: Request, budget: int) -> int:
        donor, shared = self._prefixes.longest(request.blocks, request.known - 1)  # the last token is always run
        seq = self._layers.allocate() if donor is None else self._layers.share_prefix(donor, shared)
        tokens = min(budget, request.known - shared)
        try:
            self._layers.extend(seq, min(request.known + 1, request.most - 1) - shared)
            self._layers.advance([seq], tokens)  # a shared page that is not full is copied here, not later
        except OutOfPages:
            self._layers.free(seq)
            raise
        request.cached, request.filled = shared, request.known
        self._running[request.number] = seq
        self._shared += shared
        return tokens

    def _chunk(self, request: Request, tokens: int) -> Chunk:
        stop = request.cached + tokens
        return Chunk(request.number, self._running[request.number], request.cached, stop, stop == request.known)

    def _preempt(self) -> int:
        """Take the pages of the youngest."""
        number, seq = self._running.popitem()
        request = self._live[number]
        self._free(seq)
        self._preemptions += 1
        self._dropped += request.cached
        self._waiting.appendleft(request)
        return number

    def _finish(self, request: Request) -> None:
        self._finished += 1
        seq = self._running.pop(request.number, None)
        if seq is None:
            self._waiting.remove(request)
        elif kept := self._prefixes.keep(seq):
            self._layers.trim(seq, kept)
        else:
            self._layers.free(seq)

    def _evict(self) -> bool:
        """Free a finished sequence that was kept; False if there is none."""
        seq = self._prefixes.evict()
        if seq is not None:
            self._layers.free(seq)
        return seq is not None

    def _free(self, seq: SeqId) -> None:
        self._prefixes.forget(seq)
        self._layers.free(seq)
