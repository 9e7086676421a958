"""Block masks built on a GPU: the same, with few waits and little memory."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch_flexattn.block_mask import BlockMask
from torch_flexattn.build import create_block_mask
from torch_flexattn.mods import mask_mod

pytestmark = pytest.mark.gpu


def documents(length, count=500):
    cuts = torch.randperm(length - 1, generator=torch.Generator().manual_seed(0))[: count - 1] + 1
    return torch.zeros(length, dtype=torch.int32).index_fill_(0, cuts, 1).cumsum(0).to(torch.int32)


def masks(length):
    article = documents(length)
    windows = torch.tensor([100, 1000, 3000, 8192])
    lengths = torch.tensor([length, length // 2, 77])
    blocks = torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) < 0.2
    offsets = torch.rand(2 * length, generator=torch.Generator().manual_seed(0)) < 0.001
    special = torch.zeros(length, dtype=torch.bool).index_fill_(0, torch.tensor([70, length // 2]), True)
    return {
        "causal": lambda b, h, q, kv: q >= kv,
        "window": lambda b, h, q, kv: (q >= kv) & (q - kv < 1000),
        "documents": lambda b, h, q, kv: article[q] == article[kv],
        "prefix": lambda b, h, q, kv: (kv < 300) | (q >= kv),
        "causal documents": lambda b, h, q, kv: (q >= kv) & (article[q] == article[kv]),
        "dilated": lambda b, h, q, kv: (q >= kv) & (q - kv < 2000) & ((q - kv) % 4 == 0),
        "chunked": lambda b, h, q, kv: (q // 1000 == kv // 1000) & (q >= kv),
        "special tokens": lambda b, h, q, kv: ((q - kv).abs() < 100) | special[q] | special[kv],
        "blocks": lambda b, h, q, kv: blocks[q // 200 % 64, kv // 200 % 64] & (q >= kv),
        "offsets": lambda b, h, q, kv: offsets[q - kv + length],
        "heads": lambda b, h, q, kv: (q >= kv) & (q - kv < windows[h]),
        "lengths": lambda b, h, q, kv: (q >= kv) & (kv < lengths[b]),
        "floats": lambda b, h, q, kv: (q - kv).float().abs().sqrt() < 20.5,
    }


@pytest.mark.parametrize("length", [300, 5000])
@pytest.mark.parametrize("name", masks(1000))
def test_same_as_on_a_cpu(name, length):
    mod = mask_mod(masks(length)[name])
    here = create_block_mask(mod, 3, 4, length, length - 13, check=False)
    for method in ("analytic", "exact"):
        there = create_block_mask(mod.to("cuda"), 3, 4, length, length - 13, "cuda", method=method)
        assert there.device.type == "cuda"
        assert torch.equal(there.row_ptr.cpu(), here.row_ptr)
        assert torch.equal(there.runs.cpu(), here.runs)
        for ours, theirs in zip(there.transpose_runs(), here.transpose_runs()):
            assert torch.equal(ours.cpu(), theirs)
        part, expected = there.slice_q(77, 290), here.slice_q(77, 290)
        assert torch.equal(part.runs.cpu(), expected.runs)
        assert there.visible_pairs() == here.visible_pairs()


@pytest.mark.parametrize("length,limit", [(2**17, 32), (2**20, 128)])
@pytest.mark.parametrize("name", ["causal", "window", "documents", "prefix"])
def test_memory_and_waits(name, length, limit):
    mod = mask_mod(masks(length)[name]).to("cuda")
    create_block_mask(mod, None, None, length, length, "cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            mask = create_block_mask(mod, None, None, length, length, "cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.max_memory_allocated() - before <= limit * 2**20
    assert mask.nnz_blocks() > (0, 0)
    assert len(waits) <= 12, [str(w.message)[:80] for w in waits]


def test_lists_of_blocks_do_not_wait():
    indices = torch.rand(2, 4, 64, 64, device="cuda").argsort(-1)[..., :16].to(torch.int32)
    number = torch.randint(0, 17, (2, 4, 64), device="cuda", dtype=torch.int32)
    causal = mask_mod(lambda b, h, q, kv: q >= kv)
    sizes = {"q_len": 64 * 128 - 5, "kv_len": 64 * 128}
    torch.cuda.set_sync_debug_mode("error")
    try:
        BlockMask.from_block_indices(indices, number, **sizes)
        mask = BlockMask.from_block_indices(indices, number, **sizes, mod=causal)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = BlockMask.from_block_indices(indices.cpu(), number.cpu(), **sizes, mod=causal)
    assert torch.equal(mask.kinds().cpu(), expected.kinds())


def test_a_captured_number_may_be_on_the_cpu():
    window = torch.tensor(100)
    mask = create_block_mask(lambda b, h, q, kv: q - kv < window, None, None, 1000, 1000, "cuda")
    assert {c.device.type for c in mask.mod.captures} == {"cuda"}


def test_moves():
    mask = create_block_mask(mask_mod(masks(1000)["documents"]).to("cuda"), None, None, 1000, 1000)
    assert mask.device.type == "cuda"
    back = mask.to("cpu")
    assert {t.device.type for t in (back.row_ptr, back.runs, *back.mod.captures)} == {"cpu"}
    assert torch.equal(back.to_element_mask(), mask.to_element_mask().cpu())
