"""Numbers of blocks and visible pairs of well-known masks; from counting by hand or by PyTorch's own builder."""

from __future__ import annotations

import re
import time

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch_flexattn.block_mask import BlockMask
from torch_flexattn.build import create_block_mask
from torch_flexattn.mods import mask_mod


def documents(*lengths):
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def natten(height, width, kernel):
    def visible(b, h, q, kv):
        seen = None
        for i, j, size, k in ((q // width, kv // width, height, kernel[0]), (q % width, kv % width, width, kernel[1])):
            centre = torch.clamp(i, k // 2, size - 1 - (k - 1) // 2)
            near = (centre - k // 2 <= j) & (j <= centre + (k - 1) // 2)
            seen = near if seen is None else seen & near
        return seen

    return visible


def causal(b, h, q, kv):
    return q >= kv


DOCUMENTS = documents(300, 128, 1072, 548)
KNOWN = {
    "causal 2048": (causal, 2048, 2048, 16, 120, 2_098_176),
    "causal 8192": (causal, 8192, 8192, 64, 2016, 33_558_528),
    "causal 1000": (causal, 1000, 1000, 8, 28, 500_500),
    "bottom-right": (lambda b, h, q, kv: q + 1024 >= kv, 1024, 2048, 8, 92, 1_573_376),
    "window 256": (lambda b, h, q, kv: (q >= kv) & (q - kv < 256), 2048, 2048, 30, 15, 491_648),
    "window 1000": (lambda b, h, q, kv: (q >= kv) & (q - kv < 1000), 4096, 4096, 81, 171, 3_596_500),
    "prefix 300": (lambda b, h, q, kv: (kv < 300) | (q >= kv), 2048, 2048, 16, 123, 2_143_026),
    "documents": (lambda b, h, q, kv: DOCUMENTS[q] == DOCUMENTS[kv], 2048, 2048, 47, 69, 1_555_872),
    "causal documents": (
        lambda b, h, q, kv: (q >= kv) & (DOCUMENTS[q] == DOCUMENTS[kv]), 2048, 2048, 38, 28, 778_960,
    ),
    "dilated": (
        lambda b, h, q, kv: (q >= kv) & (q - kv < 256) & ((q - kv) % 4 == 0), 1024, 1024, 21, 0, 57_472,
    ),
    "streaming": (lambda b, h, q, kv: (q >= kv) & ((q - kv < 256) | (kv < 4)), 4096, 4096, 91, 31, 1_031_290),
    "natten 32×32 k7": (natten(32, 32, (7, 7)), 1024, 1024, 22, 0, 50_176),
    "natten 16×48 k5×9": (natten(16, 48, (5, 9)), 768, 768, 16, 0, 34_560),
}  # fmt: skip


@pytest.mark.parametrize("method", ["exact", "analytic"])
@pytest.mark.parametrize("name", KNOWN)
def test_blocks_and_pairs_of_known_masks(name, method):
    mask, q_len, kv_len, partial, full, pairs = KNOWN[name]
    blocks = create_block_mask(mask, None, None, q_len, kv_len, method=method)
    assert blocks.nnz_blocks() == (partial, full)
    assert blocks.visible_pairs() == pairs


def test_causal_mask_of_a_million_tokens_has_one_run_more_a_row():
    blocks = create_block_mask(causal, None, None, 2**20, 2**20)
    assert blocks.runs.shape == (16_383, 2)
    assert blocks.nnz_blocks() == (8192, 8192 * 8191 // 2)
    assert blocks.memory_bytes() == 16_383 * 8 + 8193 * 4
    col_ptr, columns = blocks.transpose_runs()
    assert columns.shape == (16_383, 2)
    assert col_ptr.shape == (8193,)


def article_lengths(path):
    """Tokens of each article, one end-of-line token a non-empty line."""
    lengths = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if re.fullmatch(r" = [^=]+ = ", line):
            lengths.append(0)
        if line.strip() and lengths:
            lengths[-1] += len(line.split()) + 1
    return lengths


@pytest.mark.data
def test_documents_of_wikitext(data_root):
    lengths = article_lengths(data_root / "wikitext-2" / "test.txt")
    assert (len(lengths), sum(lengths)) == (62, 244_102)
    article = documents(*lengths)

    visible = mask_mod(lambda b, h, q, kv: (q >= kv) & (article[q] == article[kv]))
    start = time.perf_counter()
    blocks = create_block_mask(visible, None, None, 244_102, 244_102)
    assert time.perf_counter() - start <= 2
    assert peak_mib(lambda: create_block_mask(visible, None, None, 244_102, 244_102)) <= 200
    assert blocks.nnz_blocks() == (5_491, 47_513)
    assert blocks.visible_pairs() == 822_895_127
    assert round(blocks.sparsity(), 3) == 98.544


def peak_mib(run) -> float:
    """Most bytes of tensors that ``run`` holds at once, by PyTorch's allocation log."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
        run()
    events = [e for e in log.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak / 2**20


@pytest.mark.parametrize("length,limit", [(2**17, 32), (2**20, 128)])
@pytest.mark.parametrize("kind", ["causal", "window", "documents", "prefix"])
def test_memory_does_not_grow_with_the_square_of_the_length(kind, length, limit):
    article = documents(*(length // 512 + 128 * (k % 3 - 1) for k in range(511)), length - length // 512 * 511 + 128)[
        :length
    ]
    article = torch.cat([article, article[-1:].expand(length - article.shape[0])])
    masks = {
        "causal": causal,
        "window": lambda b, h, q, kv: (q >= kv) & (q - kv < 1000),
        "documents": lambda b, h, q, kv: article[q] == article[kv],
        "prefix": lambda b, h, q, kv: (kv < 300) | (q >= kv),
    }
    made: list[BlockMask] = []
    peak = peak_mib(lambda: made.append(create_block_mask(masks[kind], None, None, length, length)))
    assert made[0].nnz_blocks() > (0, 0)
    assert 0 < peak <= limit
