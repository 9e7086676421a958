"""The kernels for few queries against the dense reference, with keys side by side and in pages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_flexattn import create_block_mask, mask_mod, masks, reference, score_mod, scores
from torch_flexattn.kernels.triton import decode as kernels
from torch_flexattn.kernels.triton import write_pages
from torch_flexattn.kernels.triton.row_blocks import row_blocks
from torch_flexattn.kernels.triton.tiles import Tiles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TINY = Tiles(16, 16, 4, 1)
SINKS = torch.tensor([0.3, -1.0, float("-inf"), 2.0])
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
WINDOWS = torch.tensor([3, 200, 20, 0])
DOCUMENTS = torch.arange(200) // 23
NOTHING_OF_THE_SECOND = torch.tensor([1, 0, 1])

# Sizes: batch, heads, heads of keys, queries, keys, features, features of values.
CASES: dict[str, dict[str, Any]] = {
    "everything": {},
    "no groups": {"sizes": (2, 2, 2, 1, 50, 16, 16)},
    "groups of three": {"sizes": (1, 6, 2, 5, 70, 16, 24), "shares": 2},
    "groups of eight": {"sizes": (1, 8, 1, 2, 70, 16, 16), "shares": 3},
    "groups of four, 64 features": {"sizes": (1, 8, 2, 2, 40, 64, 64), "shares": 2},
    "128 features": {"sizes": (1, 3, 1, 1, 40, 128, 128), "shares": 2},
    "more rows than a tile": {"sizes": (1, 8, 1, 5, 40, 16, 16), "shares": 2},
    "80 features": {"sizes": (1, 4, 2, 1, 40, 80, 80), "shares": 2},
    "192 and 128 features": {"sizes": (1, 4, 2, 1, 40, 192, 128), "shares": 2},
    "causal": {"mask": masks.causal(), "q_offset": 95, "shares": 2},
    "causal, offsets": {"mask": masks.causal(), "q_offset": torch.tensor([3, 95, 60]), "shares": 3},
    "window": {"mask": masks.sliding_window(30), "q_offset": torch.tensor([3, 95, 60]), "shares": 7},
    "documents": {"mask": lambda b, h, i, j: DOCUMENTS[i] == DOCUMENTS[j], "q_offset": 40, "shares": 2},
    "of each head": {"mask": lambda b, h, i, j: i - j < WINDOWS[h], "q_offset": 60, "shares": 2},
    "of each batch entry": {"mask": lambda b, h, i, j: j % (b + 2) == 0, "shares": 5},
    "rows that see nothing": {"mask": lambda b, h, i, j: NOTHING_OF_THE_SECOND[i] > 0, "shares": 2, "sinks": SINKS},
    "alibi": {"score": lambda s, b, h, i, j: s - SLOPES[h] * (i - j), "q_offset": 90, "shares": 2},
    "softcap under a window": {"mask": masks.sliding_window(40), "score": scores.softcap(2.0), "q_offset": 80},
    "sinks": {"sinks": SINKS, "shares": 4},
    "lengths": {"kv_lens": torch.tensor([97, 16, 0]), "shares": 4, "sinks": SINKS},
    "lengths under a mask": {
        "mask": masks.causal(),
        "q_offset": torch.tensor([94, 14, 0]),
        "kv_lens": torch.tensor([97, 17, 0]),
        "shares": 3,
    },
    "keys of all the batch": {"kv_batch": 1, "shares": 2},
}


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tensors(sizes: tuple[int, ...], kv_batch: int | None = None, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    batch, heads, kv_heads, queries, keys, width, width_v = sizes
    first = batch if kv_batch is None else kv_batch
    shapes = (batch, heads, queries, width), (first, kv_heads, keys, width), (first, kv_heads, keys, width_v)
    return [drawn(*shape, seed=n, dtype=dtype) for n, shape in enumerate(shapes)]


def moved(value: Any) -> Any:
    return value.to(DEVICE) if hasattr(value, "to") else value


def agree(found: Any, expected: Any, slack: float = 2e-5) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.cpu().double(), b, rtol=slack, atol=slack)


def behind(t: Tensor, lens: Tensor | None, number: float) -> Tensor:
    """``t`` with ``number`` behind the keys of each batch entry."""
    if lens is None or t.shape[0] != lens.shape[0]:
        return t
    outside = torch.arange(t.shape[2]) >= lens[:, None]
    return t.masked_fill(outside[:, None, :, None], number)


def run(case: dict[str, Any], dtype: torch.dtype = torch.float32, blocks: int = 0) -> None:
    case = dict(case)
    sizes = case.pop("sizes", (3, 4, 2, 3, 97, 16, 16))
    q, k, v = tensors(sizes, case.pop("kv_batch", None), dtype)
    mask, score, shares = case.pop("mask", None), case.pop("score", None), case.pop("shares", 1)
    mask = None if mask is None else mask_mod(mask)
    score = None if score is None else score_mod(score)
    lens = case.get("kv_lens")
    expected = reference.attention(q, k, v, mask_mod=mask, score_mod=score, scale=0.3, **case)
    k, v = behind(k, lens, float("nan")), behind(v, lens, float("inf"))
    given = mask
    if mask is not None and blocks:
        given = create_block_mask(mask, *q.shape[:3], k.shape[2], BLOCK_SIZE=blocks)
    found = kernels.decode(
        *(moved(t) for t in (q, k, v)), mask=moved(given), score=moved(score), scale=0.3, tiles=TINY, shares=shares,
        **{name: moved(value) for name, value in case.items()},
    )  # fmt: skip
    agree(found, expected, 2e-5 if dtype == torch.float32 else 4e-3)


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(name: str) -> None:
    run(CASES[name])


@pytest.mark.parametrize(("shares", "blocks"), [(1, 16), (7, 16), (2, 32)])
def test_blocks_that_are_given(shares: int, blocks: int) -> None:
    run({"mask": lambda b, h, i, j: (j // 16 + h) % 3 != 1, "shares": shares}, blocks=blocks)


def test_blocks_without_a_mask() -> None:
    """A window of whole blocks, none of which evaluates anything."""
    q, k, v = tensors((1, 4, 2, 1, 96, 16, 16))
    whole = mask_mod(lambda b, h, i, j: (j // 32) != 1)
    blocks = create_block_mask(whole, None, None, 1, 96, BLOCK_SIZE=32)
    found = kernels.decode(
        *(moved(t) for t in (q, k, v)), mask=moved(blocks), score=None, scale=0.3, tiles=TINY, shares=3
    )
    agree(found, reference.attention(q, k, v, mask_mod=whole, scale=0.3))


def test_blocks_found_before() -> None:
    """As layers share them: found once a step."""
    q, k, v = tensors((2, 4, 2, 1, 300, 16, 16))
    lens = torch.tensor([300, 140])
    mask = masks.sliding_window(100)
    found = row_blocks(mask, (2, 4, 1, 300), torch.device(DEVICE), offset="each", q_offset=moved(lens - 1))
    out = kernels.decode(
        *(moved(t) for t in (q, k, v)),
        mask=found,
        score=None,
        scale=0.3,
        q_offset=moved(lens - 1),
        tiles=TINY,
        shares=2,
    )
    agree(out, reference.attention(q, k, v, mask_mod=mask, scale=0.3, q_offset=lens - 1))


def test_sixteen_bits() -> None:
    run({"mask": masks.causal(), "q_offset": 95, "shares": 2}, torch.float16)


def test_the_output_has_the_order_of_the_query() -> None:
    q, k, v = tensors((2, 4, 2, 3, 40, 16, 16))
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    expected = reference.attention(q, k, v, scale=0.3)
    found = kernels.decode(
        *(moved(t) for t in (q, k, v)), mask=None, score=None, scale=0.3, want_max=False, tiles=TINY, shares=2
    )
    agree(found[:2], expected[:2])
    assert found[0].stride() == q.stride()
    assert found[2] is None


def test_tiles_that_are_chosen() -> None:
    q, k, v = tensors((1, 4, 2, 1, 200, 16, 16))
    found = kernels.decode(*(moved(t) for t in (q, k, v)), mask=None, score=None, scale=0.3)
    agree(found, reference.attention(q, k, v, scale=0.3))


@pytest.mark.parametrize("shape", [(1, 4, 2, 3, 0, 16, 16), (0, 4, 2, 3, 5, 16, 16)])
@pytest.mark.parametrize("mask", [None, masks.causal()])
def test_nothing_to_read(shape: tuple[int, ...], mask: Any) -> None:
    q, k, v = tensors(shape)
    found = kernels.decode(*(moved(t) for t in (q, k, v)), mask=mask, score=None, scale=0.3, tiles=TINY, shares=2)
    agree(found, reference.attention(q, k, v, scale=0.3))


def test_shares_are_equal_where_runs_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without scores the sum of exponentials of a share is its number of visible keys: 4 tiles of 16 for each of 3."""
    left, real = [], kernels.launch

    def seen(kernel: Any, grid: Any, arguments: Any, **options: Any) -> None:
        if kernel.name == "combine":
            left.append(arguments[3].cpu())
        real(kernel, grid, arguments, **options)

    monkeypatch.setattr(kernels, "launch", seen)
    q, k, v = (moved(t) for t in tensors((1, 1, 1, 1, 272, 16, 16)))
    blocks = create_block_mask(lambda b, h, i, j: (j // 16) % 7 < 5, None, None, 1, 272, BLOCK_SIZE=16)
    kernels.decode(q * 0, k, v, mask=moved(blocks), score=None, scale=0.3, tiles=TINY, shares=3)
    record = kernels.Decode(16, 16).record
    assert left[0].view(3, record)[:, record - 3].tolist() == [64, 64, 80]


def test_new_tokens_are_written_to_their_pages() -> None:
    size, lens = 16, torch.tensor([5, 33, 18], dtype=torch.int32)
    table = torch.tensor([[3, 0, 0], [4, 1, 6], [2, 5, 0]], dtype=torch.int32)
    slots = torch.tensor([2, 1], dtype=torch.int32)
    k, v = drawn(2, 4, 3, 2).transpose(1, 3), drawn(2, 2, 3, 7)
    pools = [torch.zeros(8, size, 2, width) for width in (4, 7)]
    there = [moved(t.clone()) for t in (k, v, *pools, table, lens, slots)]
    write_pages.write(*there)
    for own, pool in zip((k, v), pools):
        for n, slot in enumerate(slots.tolist()):
            for token in range(3):
                place = int(lens[slot]) - 3 + token
                pool[table[slot, place // size], place % size] = own[n, :, token]
    assert torch.equal(there[2].cpu(), pools[0])
    assert torch.equal(there[3].cpu(), pools[1])


def test_an_infinity_stays_in_its_row() -> None:
    q, k, v = tensors((1, 4, 2, 2, 40, 16, 16))
    q[0, 1, 1] = float("inf")
    out, lse, _ = kernels.decode(*(moved(t) for t in (q, k, v)), mask=None, score=None, scale=0.3, tiles=TINY, shares=2)
    bad = torch.zeros(1, 4, 2, dtype=torch.bool)
    bad[0, 1, 1] = True
    assert torch.equal(out.isnan().any(-1).cpu(), bad)
    assert torch.equal(lse.isnan().cpu(), bad)


def pages_of(t: Tensor, size: int, seed: int, lens: Tensor, spare: int = 3) -> tuple[Tensor, Tensor]:
    """``[B, H, S, D]`` as pages in random order and the table that finds them; NaN wherever no key is."""
    batch, heads, keys, width = t.shape
    each = -(-keys // size)
    order = torch.randperm(batch * each + spare, generator=torch.Generator().manual_seed(seed))
    table = order[: batch * each].view(batch, each).to(torch.int32)
    pool = torch.full((batch * each + spare, size, heads, width), float("nan"), dtype=t.dtype)
    for b in range(batch):
        for j in range(int(lens[b])):
            pool[table[b, j // size], j % size] = t[b, :, j]
    return pool, table


@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("keys", [16, 32])
@pytest.mark.parametrize("mask", [None, masks.causal() & masks.sliding_window(40)])
def test_pages_equal_keys_side_by_side(size: int, keys: int, mask: Any) -> None:
    q, k, v = tensors((3, 4, 2, 2, 97, 16, 24))
    lens = torch.tensor([97, 33, 2], dtype=torch.int32)
    (k_pages, table), (v_pages, _) = (pages_of(t, size, 5, lens) for t in (k, v))
    expected = reference.attention(q, k, v, mask_mod=mask, scale=0.3, kv_lens=lens, q_offset=lens - 2)
    found = kernels.paged(
        *(moved(t) for t in (q, k_pages, v_pages, table, lens)), mask=mask, score=None, scale=0.3,
        tiles=Tiles(16, keys, 4, 1), shares=3,
    )  # fmt: skip
    agree(found, expected)


def test_slots_and_a_score_over_pages() -> None:
    q, k, v = tensors((2, 4, 2, 1, 40, 16, 16))
    lens = torch.tensor([40, 7], dtype=torch.int32)
    score = score_mod(lambda s, b, h, i, j: s - SLOPES[h] * (i - j))
    (k_pages, table), (v_pages, _) = (pages_of(t, 16, 5, lens) for t in (k, v))
    expected = reference.attention(
        q, k, v, score_mod=score, scale=0.3, kv_lens=lens, q_offset=lens - 1, sinks=SINKS, mask_mod=masks.causal()
    )
    slots = torch.tensor([3, 1], dtype=torch.int32)
    tables, lengths = torch.full((4, 3), -7, dtype=torch.int32), torch.full((4,), 99, dtype=torch.int32)
    tables[slots.long()], lengths[slots.long()] = table, lens
    found = kernels.paged(
        *(moved(t) for t in (q, k_pages, v_pages, tables, lengths)), mask=masks.causal(), score=moved(score), scale=0.3,
        slots=moved(slots), sinks=moved(SINKS), most_keys=40, tiles=TINY, shares=2,
    )  # fmt: skip
    agree(found, expected)


@pytest.mark.parametrize(("queries", "dropout", "served"), [(1, 0.0, True), (17, 0.0, False), (1, 0.1, False)])
def test_what_is_served(queries: int, dropout: float, served: bool) -> None:
    assert kernels.serves(torch.zeros(1, 1, queries, 16), None, dropout) == served


def test_queries_in_several_rows_of_blocks_are_not_served() -> None:
    blocks = create_block_mask(masks.causal(), None, None, 16, 64, BLOCK_SIZE=16)
    assert kernels.serves(torch.zeros(1, 1, 16, 16), blocks)
    assert not kernels.serves(torch.zeros(1, 1, 0, 16), blocks)


@pytest.mark.parametrize(
    ("programs", "pieces", "shares"),
    [(8, 512, 32), (64, 128, 4), (512, 16, 1), (264, 16, 1), (140, 16, 5), (8, 2, 2), (9999, 16, 1)],
)
def test_every_multiprocessor_has_something_to_do(
    programs: int, pieces: int, shares: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_h200 = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: of_h200)
    monkeypatch.setattr(kernels, "PROGRAMS", 2)
    kernels.shares_of.cache_clear()
    assert kernels.shares_of(programs, pieces, torch.device("cuda")) == shares
    kernels.shares_of.cache_clear()


@pytest.mark.gpu
def test_a_step_waits_for_nothing_and_replays() -> None:
    """No synchronisation, and a captured step sees lengths that change behind its back."""
    q, k, v = (t.cuda().bfloat16() for t in tensors((2, 8, 2, 1, 600, 64, 64)))
    lens = torch.tensor([600, 130], dtype=torch.int32, device="cuda")
    mask = masks.causal() & masks.sliding_window(200)

    def step() -> Tensor:
        return kernels.decode(
            q, k, v, mask=mask, score=None, scale=0.125, kv_lens=lens, q_offset=lens - 1, want_max=False
        )[0]

    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    lens.copy_(torch.tensor([37, 599], dtype=torch.int32))
    graph.replay()
    expected, *_ = reference.attention(q, k, v, mask_mod=mask, scale=0.125, kv_lens=lens, q_offset=lens - 1)
    torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=2e-2)
