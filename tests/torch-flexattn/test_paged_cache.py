"""The paged cache against keys and values kept side by side."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_flexattn import InputError, OutOfPages, OutOfSequences, PagedKVCache, masks, reference, scores
from torch_flexattn.paged.allocator import SeqId

HEADS, WIDTH, WIDTH_V = 2, 8, 12


def cache_of(pages: int = 12, **options: Any) -> PagedKVCache:
    options = {"max_seqs": 4, "v_head_dim": WIDTH_V, **options}
    return PagedKVCache(pages, 16, HEADS, WIDTH, **options)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tokens(count: int, n: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
    return drawn(n, HEADS, count, WIDTH, seed=seed), drawn(n, HEADS, count, WIDTH_V, seed=seed + 1000)


def filled(cache: PagedKVCache, lengths: list[int]) -> tuple[list[SeqId], list[tuple[Tensor, Tensor]]]:
    """Sequences written in turns, so that their pages are mixed; and what was written."""
    seqs = [cache.allocate() for _ in lengths]
    whole = [tokens(length, seed=10 * n) for n, length in enumerate(lengths)]
    for start in range(0, max(lengths), 7):
        for seq, (k, v) in zip(seqs, whole):
            cache.append([seq], k[:, :, start : start + 7], v[:, :, start : start + 7])
    return seqs, whole


def expected(q: Tensor, whole: list[tuple[Tensor, Tensor]], **options: Any) -> Tensor:
    """One sequence at a time, by the dense reference."""
    rows = []
    for own, (k, v) in zip(q.split(1), whole):
        rows.append(reference.attention(own, k, v, q_offset=k.shape[2] - q.shape[2], **options)[0])
    return torch.cat(rows)


CASES: dict[str, dict[str, Any]] = {
    "everything": {},
    "causal": {"mask_mod": masks.causal()},
    "a mask that depends on lengths": {"mask_mod": masks.causal("bottom_right")},
    "window": {"mask_mod": masks.sliding_window(20)},
    "softcap": {"score_mod": scores.softcap(2.0), "mask_mod": masks.causal()},
    "alibi": {"score_mod": scores.alibi(6)},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0, float("-inf"), 1.0])},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("queries", [1, 3])
def test_attention_equals_that_over_keys_side_by_side(name: str, queries: int) -> None:
    cache = cache_of()
    seqs, whole = filled(cache, [40, 17, 3])
    q = drawn(3, 6, queries, WIDTH)
    case = dict(CASES[name])
    found = cache.attend(q, seqs, **case)
    if name == "a mask that depends on lengths":
        case["mask_mod"] = masks.causal()
    torch.testing.assert_close(found.double(), expected(q, whole, **case), rtol=1e-5, atol=1e-5)


def test_by_the_kernel_of_pages() -> None:
    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cache = cache_of(device=device)
    seqs = [cache.allocate() for _ in range(2)]
    whole = [tokens(length, seed=length) for length in (40, 17)]
    for seq, (k, v) in zip(seqs, whole):
        cache.append([seq], k.to(device), v.to(device))
    q = drawn(2, 6, 2, WIDTH)
    mask = masks.sliding_window(20)
    found, lse = cache.attend(q.to(device), seqs[::-1], mask_mod=mask, backend="triton", return_lse=True)
    torch.testing.assert_close(found.cpu().double(), expected(q, whole[::-1], mask_mod=mask), rtol=1e-5, atol=1e-5)
    assert lse.shape == (2, 6, 2)


def test_a_prompt_of_many_queries() -> None:
    cache = cache_of()
    seqs, whole = filled(cache, [40, 25])
    q = drawn(2, 4, 25, WIDTH)
    found = cache.attend(q, seqs, mask_mod=masks.causal())
    torch.testing.assert_close(found.double(), expected(q, whole, mask_mod=masks.causal()), rtol=1e-5, atol=1e-5)


def test_a_fork_that_is_written_to_equals_a_copy() -> None:
    cache = cache_of()
    (first,), ((k, v),) = filled(cache, [21])
    second = cache.fork(first)
    assert cache.stats().shared_pages == 2
    free = cache.stats().free_pages
    (k1, v1), (k2, v2) = tokens(2, seed=5), tokens(2, seed=6)
    cache.append([first, second], torch.cat([k1, k2]), torch.cat([v1, v2]))
    assert cache.stats().free_pages == free - 1  # only the page that both wrote to was copied, once
    assert cache.stats().shared_pages == 1
    whole = [(torch.cat([k, own_k], 2), torch.cat([v, own_v], 2)) for own_k, own_v in ((k1, v1), (k2, v2))]
    q = drawn(2, 4, 1, WIDTH)
    found = cache.attend(q, [first, second])
    torch.testing.assert_close(found.double(), expected(q, whole), rtol=1e-5, atol=1e-5)


def test_of_two_that_write_to_a_shared_page_one_needs_a_copy() -> None:
    cache = cache_of(pages=3)
    (first,), _ = filled(cache, [21])
    cache.append([first, cache.fork(first)], *tokens(1, n=2))
    assert cache.stats().free_pages == 0


def test_only_what_changed_is_sent() -> None:
    cache = cache_of()
    (first,), _ = filled(cache, [21])
    cache.append([cache.fork(first)], *tokens(1))
    left = (cache._pages.changed, cache._pages.resized, cache._pages.copies)
    assert not any(left)


def test_a_shared_prefix() -> None:
    cache = cache_of()
    (first,), ((k, v),) = filled(cache, [40])
    second = cache.share_prefix(first, 20)
    new_k, new_v = tokens(5, seed=3)
    cache.append([second], new_k, new_v)
    cache.free(first)
    q = drawn(1, 4, 2, WIDTH)
    whole = [(torch.cat([k[:, :, :20], new_k], 2), torch.cat([v[:, :, :20], new_v], 2))]
    torch.testing.assert_close(cache.attend(q, [second]).double(), expected(q, whole), rtol=1e-5, atol=1e-5)
    assert cache.stats().free_pages == 10


def test_trimmed_tokens_are_written_anew_and_those_of_a_fork_stay() -> None:
    cache = cache_of()
    (first,), ((k, v),) = filled(cache, [20])
    second = cache.fork(first)
    cache.trim(first, 10)
    new_k, new_v = tokens(3, seed=3)
    cache.append([first], new_k, new_v)
    q = drawn(2, 4, 1, WIDTH)
    whole = [(torch.cat([k[:, :, :10], new_k], 2), torch.cat([v[:, :, :10], new_v], 2)), (k, v)]
    torch.testing.assert_close(cache.attend(q, [first, second]).double(), expected(q, whole), rtol=1e-5, atol=1e-5)
    assert cache.length(first) == 13


def everything_of(cache: PagedKVCache) -> Any:
    pages = cache._pages
    sequences = {seq: (own.slot, own.length, list(own.pages)) for seq, own in pages.sequences.items()}
    tensors = [t.clone() for t in (cache.k_pages, cache.v_pages, cache.table, cache.lengths)]
    return sequences, list(pages.holders), list(pages.free), tensors


@pytest.mark.parametrize("ask", ["append", "allocate", "extend", "copy", "pool"])
def test_out_of_pages_changes_nothing(ask: str) -> None:
    cache = cache_of(pages=4)
    seqs, _ = filled(cache, [16, 30])
    if ask == "pool":  # more than all pages hold, which one sequence has
        cache = cache_of(pages=4)
        seqs, _ = filled(cache, [64])
    if ask == "copy":  # two new pages would do, but the shared one is to be copied as well
        seqs = [cache.fork(seqs[1]), seqs[0]]
        cache.extend(seqs[1], 1)
    before = everything_of(cache)
    calls = {
        "append": lambda: cache.append(seqs, *tokens(19, n=2)),
        "allocate": lambda: cache.allocate(17),
        "extend": lambda: cache.extend(seqs[0], 17),
        "copy": lambda: cache.append([seqs[0]], *tokens(1)),
        "pool": lambda: cache.append(seqs, *tokens(1)),
    }
    with pytest.raises(OutOfPages) as raised:
        calls[ask]()
    assert (raised.value.needed, raised.value.free) == {"append": (4, 1), "copy": (1, 0), "pool": (1, 0)}.get(
        ask, (2, 1)
    )
    after = everything_of(cache)
    assert after[:3] == before[:3]
    assert all(torch.equal(a, b) for a, b in zip(after[3], before[3]))


def test_a_freed_sequence_is_unknown() -> None:
    cache = cache_of()
    (seq,), _ = filled(cache, [5])
    cache.attend(drawn(1, 2, 1, WIDTH), [seq])
    assert list(cache._pool._slots) == [(seq,)]
    cache.free(seq)
    assert not cache._pool._slots
    for call in (
        lambda: cache.free(seq),
        lambda: cache.append([seq], *tokens(1)),
        lambda: cache.attend(drawn(1, 2, 1, WIDTH), [seq]),
        lambda: cache.fork(seq),
        lambda: cache.trim(seq, 0),
        lambda: cache.block_table([seq]),
    ):
        with pytest.raises(KeyError, match=f"seq {seq} is no sequence"):
            call()


def test_no_more_sequences_than_slots() -> None:
    cache = cache_of(max_seqs=1)
    seq = cache.allocate()
    with pytest.raises(OutOfSequences, match="max_seqs=1"):
        cache.allocate()
    with pytest.raises(OutOfSequences):
        cache.fork(seq)
    cache.free(seq)
    assert cache.allocate() != seq


def test_a_sequence_named_twice_is_refused() -> None:
    cache = cache_of()
    seq = cache.allocate()
    with pytest.raises(InputError, match="twice"):
        cache.append([seq, seq], *tokens(1, n=2))
    assert cache.length(seq) == 0


def test_block_table() -> None:
    cache = cache_of()
    seqs, _ = filled(cache, [33, 16])
    table = cache.block_table(seqs)
    assert table.shape == (2, 3)
    assert table[1, 1:].tolist() == [-1, -1]
    assert len({*table.flatten().tolist()} - {-1}) == 4


def test_pages_in_reserve_are_used() -> None:
    cache = cache_of(pages=4)
    seq = cache.allocate(40)
    assert cache.stats().free_pages == 1
    cache.append([seq], *tokens(33))
    assert cache.stats().free_pages == 1
    cache.trim(seq, 16)
    assert cache.stats().free_pages == 3


def test_no_sequences_and_no_queries() -> None:
    cache = cache_of()
    (seq,), _ = filled(cache, [5])
    assert cache.attend(drawn(0, 4, 1, WIDTH), []).shape == (0, 4, 1, WIDTH_V)
    assert cache.attend(drawn(1, 4, 0, WIDTH), [seq]).shape == (1, 4, 0, WIDTH_V)
    cache.append([], *tokens(1, n=0))


def test_made_in_inference_mode_used_outside() -> None:
    with torch.inference_mode():
        cache = cache_of()
        (seq,), ((k, v),) = filled(cache, [5])
    cache.append([seq], *tokens(1, seed=9))
    cache.trim(seq, 5)
    q = drawn(1, 4, 1, WIDTH)
    torch.testing.assert_close(cache.attend(q, [seq]).double(), expected(q, [(k, v)]), rtol=1e-5, atol=1e-5)


def test_a_gradient_is_refused() -> None:
    cache = cache_of()
    (seq,), _ = filled(cache, [5])
    with pytest.raises(NotImplementedError, match="no gradient"):
        cache.attend(drawn(1, 4, 1, WIDTH).requires_grad_(), [seq])


def test_slots_of_many_batches_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_flexattn.paged import pool as module

    monkeypatch.setattr(module, "KEPT", 2)
    cache = cache_of()
    seqs, whole = filled(cache, [5, 6, 7])
    for seq, own in [*zip(seqs, whole), *zip(seqs, whole)]:
        q = drawn(1, 4, 1, WIDTH)
        torch.testing.assert_close(cache.attend(q, [seq]).double(), expected(q, [own]), rtol=1e-5, atol=1e-5)
    assert len(cache._pool._slots) == 2


@pytest.mark.gpu
def test_a_graph_sees_what_was_appended_since() -> None:
    cache = PagedKVCache(64, 64, 2, 64, max_seqs=4, dtype=torch.bfloat16, device="cuda")
    seqs = [cache.allocate() for _ in range(2)]
    lengths, generator = [100, 30], torch.Generator("cuda").manual_seed(0)

    def new(count: int, n: int) -> tuple[Tensor, Tensor]:
        shape = (n, 2, count, 64)
        return tuple(torch.randn(shape, device="cuda", generator=generator).bfloat16() for _ in range(2))  # type: ignore[return-value]

    whole = []
    for seq, length in zip(seqs, lengths):
        whole.append(new(length, 1))
        cache.append([seq], *whole[-1])
    q, (k, v) = torch.randn(2, 8, 1, 64, device="cuda").bfloat16(), new(1, 2)
    mask = masks.causal() & masks.sliding_window(80)

    def step() -> Tensor:
        cache.write(seqs, k, v)
        return cache.attend(q, seqs, mask_mod=mask)

    cache.advance(seqs, 1)
    step()
    whole = [(torch.cat([a, k[n : n + 1]], 2), torch.cat([b, v[n : n + 1]], 2)) for n, (a, b) in enumerate(whole)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for _ in range(70):  # past the end of a page
        new_k, new_v = new(1, 2)
        cache.advance(seqs, 1)
        k.copy_(new_k)
        v.copy_(new_v)
        torch.cuda.set_sync_debug_mode("error")
        graph.replay()
        torch.cuda.set_sync_debug_mode("default")
        whole = [(torch.cat([a, k[n : n + 1]], 2), torch.cat([b, v[n : n + 1]], 2)) for n, (a, b) in enumerate(whole)]
    torch.testing.assert_close(out.double(), expected(q, whole, mask_mod=mask), rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
def test_a_step_waits_for_nothing() -> None:
    cache = PagedKVCache(64, 64, 2, 64, max_seqs=4, dtype=torch.bfloat16, device="cuda")
    seqs = [cache.allocate() for _ in range(2)]
    k, v = (torch.randn(2, 2, 70, 64, device="cuda").bfloat16() for _ in range(2))
    q, mask = torch.randn(2, 8, 1, 64, device="cuda").bfloat16(), masks.causal() & masks.sliding_window(40)
    cache.append(seqs, k, v)
    cache.attend(q, seqs, mask_mod=mask)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        cache.append(seqs, k[:, :, :1], v[:, :, :1])
        cache.attend(q, seqs, mask_mod=mask)
    finally:
        torch.cuda.set_sync_debug_mode("default")
