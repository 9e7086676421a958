"""The batcher: who is admitted, in which order, with how many tokens, and who has to go."""

from __future__ import annotations

import pytest
import torch
from torch_flexattn import BatchStep, ContinuousBatcher, OutOfPages, OutOfSequences

from .served import Served, alone, small_cache


def said(step: BatchStep) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Requests that decode; requests that prefill, from where to where."""
    return [c.request for c in step.decode], [(c.request, c.start, c.stop) for c in step.prefill]


def test_a_prompt_is_cut_by_the_budget_and_the_next_gets_the_rest() -> None:
    served = Served(8, token_budget=10)
    served.add(list(range(24)), 3)
    served.add(list(range(50, 59)), 1)
    steps = [said(served.step()) for _ in range(5)]
    assert steps == [
        ([], [(0, 0, 10)]),
        ([], [(0, 10, 20)]),
        ([], [(0, 20, 24), (1, 0, 6)]),
        ([0], [(1, 6, 9)]),
        ([0], []),
    ]
    assert served.finished == [1, 0]
    assert served.cache.stats().free_pages == 8


def test_only_the_last_part_of_a_prompt_samples() -> None:
    served = Served(8, token_budget=10)
    served.add(list(range(15)), 2)
    assert [[chunk.samples for chunk in step.chunks] for step in served.drain()] == [[False], [True], [True]]


def test_a_small_request_does_not_overtake_a_large_one() -> None:
    served = Served(4)
    served.add(list(range(40)), 5)  # three pages
    served.add(list(range(30)), 5)  # two
    served.add([1], 1)  # one is free
    assert said(served.step())[1] == [(0, 0, 40)]
    assert served.batcher.waiting == (1, 2)
    served.drain()
    assert served.finished == [0, 2, 1]


def test_no_more_requests_run_than_the_cache_has_sequences_or_the_budget_tokens() -> None:
    for options in ({"max_seqs": 2}, {"max_seqs": 4, "token_budget": 2}):
        served = Served(8, **options)
        for _ in range(3):
            served.add([5], 4)
        steps = served.drain()
        assert max(len(step.chunks) for step in steps) == 2
        assert served.finished == [0, 1, 2]


def test_the_youngest_loses_its_pages_and_is_computed_again() -> None:
    served = Served(6)
    prompts = [list(range(n, n + 16)) for n in (0, 100, 200)]
    for prompt in prompts:
        served.add(prompt, 20)
    steps = served.drain()
    preempted = [number for step in steps for number in step.preempted]
    assert preempted[0] == 2
    assert 0 not in preempted
    assert served.batcher.stats().preemptions == len(preempted)
    assert served.batcher.stats().dropped_tokens >= 16 * len(preempted)
    assert served.tokens == {n: alone(prompt, 20) for n, prompt in enumerate(prompts)}
    assert served.cache.stats().free_pages == 6


def test_a_preempted_request_is_the_first_to_be_admitted_again() -> None:
    served = Served(4)
    for start in (0, 100):
        served.add(list(range(start, start + 31)), 20)
    while not served.step().preempted:
        pass
    late = served.add([1], 1)
    assert served.batcher.waiting == (1, late)
    served.drain()
    assert served.finished == [0, 1, late] or served.finished == [0, late, 1]
    assert served.tokens[1] == alone(list(range(100, 131)), 20)


def test_a_preempted_request_comes_back_at_once_where_others_hold_what_it_had() -> None:
    served = Served(6, prefix_block=16)
    prompt = list(range(47))
    for _ in range(2):  # both are computed in one step: nothing to share yet
        served.add(prompt, 10, blocks="ab")
    steps = served.drain()
    (step,) = [step for step in steps if step.preempted]
    assert step.preempted == (1,)
    assert said(step) == ([0], [(1, 32, 49)])
    assert served.tokens[1] == alone(prompt, 10)


@pytest.mark.parametrize("prompt, steps", [(16, 0), (15, 2)])
def test_pages_of_others_are_not_taken(prompt: int, steps: int) -> None:
    served = Served(4, max_seqs=2)
    other = served.cache.allocate(48)
    served.add(list(range(prompt)), 3)
    for _ in range(steps):
        served.step()
    before = served.cache.stats()
    with pytest.raises(OutOfPages):
        served.step()
    assert served.cache.stats() == before
    served.cache.free(other)
    served.drain()
    assert served.tokens[0] == alone(list(range(prompt)), 3)


def test_sequences_of_others_are_not_taken() -> None:
    served = Served(4, max_seqs=1)
    other = served.cache.allocate()
    served.add([1], 1)
    with pytest.raises(OutOfSequences):
        served.step()
    served.cache.free(other)
    served.drain()


def test_ended_requests_leave_wherever_they_are() -> None:
    served = Served(4, max_seqs=1)
    first, second, third = (served.add([n + 1], 9) for n in range(3))
    served.step()
    served.step(ended=(first, third))
    assert served.finished == [first, third]
    assert served.batcher.waiting == (second,)
    assert len(served.tokens[first]) == 3
    served.drain()
    assert served.tokens[second] == alone([2], 9)
    assert served.batcher.stats().finished == 3


def test_nothing_is_to_be_done_without_requests() -> None:
    served = Served(4)
    assert served.batcher.schedule() == BatchStep()
    served.add([1], 1)  # no update is due
    served.drain()
    assert served.finished == [0]


def test_a_sequence_may_fill_the_whole_cache() -> None:
    served = Served(2)
    served.add(list(range(30)), 3)
    served.drain()
    assert served.tokens[0] == alone(list(range(30)), 3)


def test_layers_are_kept_alike() -> None:
    caches = [small_cache(6) for _ in range(3)]
    batcher = ContinuousBatcher(caches, token_budget=16, prefix_block=16)
    for _ in range(4):
        batcher.add(36, 20, blocks=["a", "b"])
    preempted = 0
    while batcher.live:
        step = batcher.schedule()
        preempted += len(step.preempted)
        assert len({cache.stats() for cache in caches}) == 1
        for chunk in step.chunks:
            assert {cache.length(chunk.seq) for cache in caches} == {chunk.stop}
            assert all(torch.equal(c.block_table([chunk.seq]), caches[0].block_table([chunk.seq])) for c in caches)
        batcher.update()
    assert preempted
    assert batcher.stats().kept == 1
    assert len({cache.stats() for cache in caches}) == 1


def test_requests_that_begin_alike_share_pages() -> None:
    served = Served(12, prefix_block=16)
    same = list(range(32))
    served.add([*same, 7, 8], 3, blocks="ab")
    served.step()
    served.add([*same, 9], 3, blocks="ab")
    assert said(served.step()) == ([0], [(1, 32, 33)])
    assert served.cache.stats().shared_pages == 2
    served.drain()
    assert served.batcher.stats().shared_tokens == 32
    assert served.tokens == {0: alone([*same, 7, 8], 3), 1: alone([*same, 9], 3)}


def test_a_shared_page_that_is_not_full_is_copied() -> None:
    served = Served(12, prefix_block=20)
    same = list(range(20))
    served.add([*same, 1, 2], 3, blocks=[4])
    served.step()
    served.add([*same, 3, 4], 3, blocks=[4])
    assert said(served.step()) == ([0], [(1, 20, 22)])
    assert served.cache.stats().shared_pages == 1
    served.drain()
    assert served.tokens == {0: alone([*same, 1, 2], 3), 1: alone([*same, 3, 4], 3)}


def test_blocks_are_not_shared_before_they_are_computed() -> None:
    served = Served(12, prefix_block=16, token_budget=64)
    for last in (7, 8):
        served.add([*range(16), last], 2, blocks=["a"])
    assert said(served.step())[1] == [(0, 0, 17), (1, 0, 17)]
    served.drain()
    assert served.batcher.stats().shared_tokens == 0


def test_blocks_of_a_preempted_request_are_gone_with_its_pages() -> None:
    served = Served(6, prefix_block=16)
    prompts = [[block] * 47 for block in (1, 2)]
    for block, prompt in enumerate(prompts):
        served.add(prompt, 10, blocks=[block])
    steps = served.drain()
    assert [number for step in steps for number in step.preempted] == [1]
    assert served.batcher.stats().shared_tokens == 0
    assert served.tokens == {n: alone(prompt, 10) for n, prompt in enumerate(prompts)}


def test_blocks_that_are_computed_in_part_are_not_shared() -> None:
    served = Served(12, prefix_block=20, token_budget=32)
    for last in (7, 8):
        served.add([*range(40), last], 2, blocks="ab")
    served.step()
    assert said(served.step())[1] == [(0, 32, 41), (1, 20, 41)]
    served.drain()
    assert served.tokens == {n: alone([*range(40), last], 2) for n, last in enumerate((7, 8))}


def test_the_last_token_of_a_prompt_is_run_in_any_case() -> None:
    served = Served(12, prefix_block=16)
    for _ in range(2):
        served.add(list(range(32)), 2, blocks="ab")
        served.drain()
    assert served.batcher.stats().shared_tokens == 16
    assert served.tokens[1] == alone(list(range(32)), 2)


def test_finished_requests_keep_their_blocks_until_pages_are_needed() -> None:
    served = Served(6, prefix_block=16)
    for block in "ab":
        served.add([ord(block)] * 17, 1, blocks=[block])
        served.drain()
    assert served.batcher.stats().kept == 2
    assert served.cache.stats().free_pages == 4
    served.add([ord("a")] * 17, 1, blocks=["a"])  # used last, and adds no block
    served.drain()
    assert served.batcher.stats().kept == 2
    served.add(list(range(70)), 1)  # five pages: the one of "b" goes
    served.drain()
    assert served.batcher.stats().kept == 1
    served.add([ord("b")] * 17, 1, blocks=["b"])
    served.add([ord("a")] * 17, 1, blocks=["a"])
    assert said(served.step())[1] == [(4, 0, 17), (5, 16, 17)]
    served.drain()
    served.add(list(range(96)), 1)  # all pages
    served.drain()
    assert served.batcher.stats().kept == 0
    assert served.cache.stats().free_pages == 6
