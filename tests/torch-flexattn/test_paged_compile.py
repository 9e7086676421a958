"""A paged cache inside ``torch.compile`` and ``torch.export``: graphs know no lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch_flexattn import PagedKVCache, masks, scores

WINDOW, SOFTCAP = masks.sliding_window(18), scores.softcap(3.0)
HEADS, KV_HEADS, WIDTH, STEPS = 4, 2, 8, 20


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def step(cache: PagedKVCache) -> Callable[..., Tensor]:
    def run(q: Tensor, k: Tensor, v: Tensor, seqs: Any) -> Tensor:
        cache.write(seqs, k, v)
        return cache.attend(q, seqs, SOFTCAP, WINDOW)

    return run


def drawn(rng: torch.Generator, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(batch, heads, 1, WIDTH, generator=rng) for heads in (HEADS, KV_HEADS, KV_HEADS))


@pytest.mark.parametrize(("by_slots", "graphs"), [(True, 1), (False, 2)])
@pytest.mark.parametrize("options", [{}, {"dtype": torch.float8_e4m3fn, "k_descale": 0.5}], ids=["32 bits", "8 bits"])
def test_new_lengths_and_sequences_take_no_new_graph(by_slots: bool, graphs: int, options: dict[str, Any]) -> None:
    rng = torch.Generator().manual_seed(0)
    fast, slow = (PagedKVCache(16, 16, KV_HEADS, WIDTH, max_seqs=4, **options) for _ in range(2))
    a, b, c = [(fast.allocate(), slow.allocate())[0] for _ in range(3)]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step(fast), fullgraph=True, backend=counter)
    for batch in ([a, b], [c, a]):
        fast.slots(batch)  # sent once, as by any call before
    for number in range(STEPS):
        batch = [a, b] if number % 3 else [c, a]
        inputs = drawn(rng, 2)
        for cache in (fast, slow):
            cache.advance(batch, 1)
        found = compiled(*inputs, fast.slots(batch) if by_slots else batch)
        torch.testing.assert_close(found, step(slow)(*inputs, batch))
    assert counter.frame_count == graphs


def test_sequences_that_were_not_used_before_are_sent_by_the_graph() -> None:
    rng = torch.Generator().manual_seed(1)
    cache = PagedKVCache(4, 16, KV_HEADS, WIDTH, max_seqs=2)
    seq = cache.allocate()
    cache.advance([seq], 1)
    q, k, v = drawn(rng, 1)
    found = torch.compile(step(cache), fullgraph=True, backend="aot_eager")(q, k, v, [seq])
    assert not cache._pool._slots  # what a graph sends lies in its own memory, and may be written anew
    torch.testing.assert_close(found, cache.attend(q, [seq], SOFTCAP, WINDOW))


def test_exported_calls_see_sequences_that_grew() -> None:
    rng = torch.Generator().manual_seed(2)
    cache = PagedKVCache(4, 16, KV_HEADS, WIDTH, max_seqs=2)
    seq = cache.allocate()

    class Model(torch.nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return cache.attend(q, [seq])

    q, k, v = drawn(rng, 1)
    cache.append([seq], k, v)
    program = torch.export.export(Model(), (q,)).module()
    for _ in range(STEPS):
        cache.append([seq], *drawn(rng, 1)[1:])
    torch.testing.assert_close(program(q), cache.attend(q, [seq]))


def test_a_mod_made_inside_is_refused_by_name() -> None:
    cache = PagedKVCache(4, 16, KV_HEADS, WIDTH, max_seqs=2)
    seq = cache.allocate()
    cache.append([seq], *drawn(torch.Generator().manual_seed(3), 1)[1:])
    inside = torch.compile(lambda q: cache.attend(q, [seq], mask_mod=masks.causal()), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=r"mask_mod of PagedKVCache\.attend inside torch\.compile must be made outside"):
        inside(torch.zeros(1, HEADS, 1, WIDTH))


def test_slots_are_looked_at() -> None:
    cache = PagedKVCache(4, 16, KV_HEADS, WIDTH, max_seqs=2)
    q = torch.zeros(1, HEADS, 1, WIDTH)
    with pytest.raises(TypeError, match=r"seqs must be .* int32, got a tensor of torch\.int64"):
        cache.attend(q, torch.tensor([0]))
    with pytest.raises(ValueError, match=r"seqs must be .*\[n\], got \(1, 1\)"):
        cache.attend(q, torch.zeros(1, 1, dtype=torch.int32))
    with pytest.raises(ValueError, match="q must have shape"):
        cache.attend(q, torch.zeros(2, dtype=torch.int32))


@pytest.mark.gpu
def test_a_compiled_step_on_a_gpu() -> None:
    rng = torch.Generator().manual_seed(4)
    fast, slow = (PagedKVCache(16, 16, KV_HEADS, WIDTH, max_seqs=4, device="cuda") for _ in range(2))
    batch = [(fast.allocate(), slow.allocate())[0] for _ in range(2)]
    compiled = torch.compile(step(fast), fullgraph=True)
    for _ in range(STEPS):
        inputs = tuple(t.cuda() for t in drawn(rng, 2))
        for cache in (fast, slow):
            cache.advance(batch, 1)
        found = compiled(*inputs, fast.slots(batch))
        torch.testing.assert_close(found, step(slow)(*inputs, batch))
