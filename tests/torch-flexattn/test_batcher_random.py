"""Any requests, in any cache, with any budget: what holds in every step and at the end."""

from __future__ import annotations

from typing import Any

import pytest

from .served import Served, alone

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

PAGE = 16


def tokens_of(block: int, size: int) -> list[int]:
    return [17 * block + place for place in range(size)]


@st.composite
def requests(draw: Any, room: int, size: int) -> list[tuple[int, list[int], list[int], int]]:
    """Step of arrival, prompt, its blocks, and how many tokens are to follow."""
    found = []
    for _ in range(draw(st.integers(2, 7))):
        length = min(room, draw(st.sampled_from([1, 9, 15, 16, 20, 31, 48, 60])))
        blocks, name = [], 0
        for _ in range(-(-length // size)):  # a block names the ones before it
            name = 3 * name + draw(st.sampled_from([1, 1, 2]))
            blocks.append(name)
        prompt = [token for block in blocks for token in tokens_of(block, size)][:length]
        count = min(room + 1 - length, draw(st.sampled_from([1, 3, 17, 25, 40])))
        found.append((draw(st.sampled_from([0, 1, 2, 9])), prompt, blocks, count))
    return sorted(found, key=lambda request: request[0])


def check(served: Served, step: Any, oldest: int, before: tuple[int, ...]) -> None:
    batcher = served.batcher
    assert step.tokens <= batcher.token_budget
    assert oldest in {chunk.request for chunk in step.chunks}
    assert len({chunk.request for chunk in step.chunks}) == len(step.chunks)
    kept_on = [number for number in before if number not in step.preempted]
    admitted = [c.request for c in step.prefill if c.request not in kept_on]
    assert before[len(kept_on) :] == tuple(sorted(step.preempted))  # the youngest
    assert all(number > max(kept_on, default=-1) for number in admitted)
    order = [*batcher.running, *batcher.waiting]
    assert order == sorted(order)
    stats = served.cache.stats()
    assert stats.sequences == len(batcher.running) + batcher.stats().kept


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_request_gets_the_tokens_it_gets_alone_and_all_pages_come_back(data: st.DataObject) -> None:
    pages, size = data.draw(st.integers(3, 9)), data.draw(st.sampled_from([5, 16, 20]))
    shares = data.draw(st.booleans())
    served = Served(
        pages,
        max_seqs=data.draw(st.sampled_from([4, 6, 2, 1])),
        token_budget=data.draw(st.sampled_from([512, 40, 7, 2, 1])),
        prefix_block=size if shares else None,
    )
    coming = data.draw(requests(pages * PAGE, size))
    wanted = {}
    number = 0
    while coming or served.batcher.live:
        while coming and (coming[0][0] <= number or not served.batcher.live):
            _, prompt, blocks, count = coming.pop(0)
            wanted[served.add(prompt, count, blocks=blocks if shares else [])] = alone(prompt, count)
        before, oldest = served.batcher.running, min([*served.batcher.running, *served.batcher.waiting])
        check(served, served.step(), oldest, before)
        number += 1
        assert number < 10_000
    assert served.tokens == wanted
    assert sorted(served.finished) == sorted(wanted)
    stats = served.batcher.stats()
    assert (stats.waiting, stats.running, stats.finished) == (0, 0, len(wanted))
    assert stats.kept == 0 or shares
    served.add(list(range(PAGE * pages)), 1)  # takes whatever was kept
    served.drain()
    assert served.batcher.stats().kept == 0
    assert served.cache.stats().free_pages == pages
    assert served.cache.stats().sequences == 0
