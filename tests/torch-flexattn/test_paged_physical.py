"""Attention over the whole pool with a physical block mask, against the cache's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_flexattn import (
    InputError,
    KindError,
    PagedKVCache,
    create_block_mask,
    flex_attention,
    mask_mod,
    masks,
    score_mod,
    scores,
    to_physical,
)

LENGTHS = [37, 16, 70, 5]
QUERIES = 3


def filled(device: str = "cpu") -> tuple[PagedKVCache, list[int]]:
    """Sequences written in turns, so that their pages are mixed, and a freed one's garbage between them."""
    draw = torch.Generator().manual_seed(0)
    cache = PagedKVCache(20, 16, 2, 8, max_seqs=6, v_head_dim=16, device=device)

    def write(seq: int, count: int, value: float | None = None) -> None:
        k, v = (torch.randn(1, 2, count, width, generator=draw) for width in (8, 16))
        if value is not None:
            k, v = torch.full_like(k, value), torch.full_like(v, value)
        cache.append([seq], k.to(device), v.to(device))

    waste = cache.allocate()
    seqs = [cache.allocate() for _ in LENGTHS]
    for start in range(0, max(LENGTHS), 9):
        write(waste, 9, 1e4)
        for seq, length in zip(seqs, LENGTHS):
            if start < length:
                write(seq, min(9, length - start))
    cache.free(waste)
    return cache, seqs


def at_the_end(mask, device: str = "cpu"):
    """A mask of training, for the last queries of each sequence."""
    first = torch.tensor(LENGTHS, device=device) - QUERIES
    return mask_mod(lambda b, h, q_idx, kv_idx: mask(b, h, q_idx + first[b], kv_idx))


def pool(cache: PagedKVCache) -> list[Tensor]:
    return [t.flatten(0, 1).transpose(0, 1).unsqueeze(0) for t in (cache.k_pages, cache.v_pages)]


MASKS = {
    "causal": lambda b, h, q_idx, kv_idx: q_idx >= kv_idx,
    "window of a head": lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).abs() < 5 + 9 * h,
    "everything": lambda b, h, q_idx, kv_idx: kv_idx >= 0,
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1]])
def test_the_pool_under_a_physical_mask_gives_what_the_cache_gives(name: str, order: list[int]) -> None:
    cache, seqs = filled()
    chosen = [seqs[n] for n in order]
    q = torch.randn(4, 4, QUERIES, 8, generator=torch.Generator().manual_seed(1))
    first = torch.tensor([LENGTHS[n] for n in order]) - QUERIES
    mask = MASKS[name]
    blocks = create_block_mask(
        lambda b, h, q_idx, kv_idx: mask(b, h, q_idx + first[b], kv_idx), 4, 4, QUERIES, 70, BLOCK_SIZE=(16, 16)
    )
    bias = scores.alibi(4)
    wanted, lse = cache.attend(q, chosen, bias, mask_mod(mask), return_lse=True)
    shifted = score_mod(lambda s, b, h, q_idx, kv_idx: bias(s, b, h, q_idx + first[b], kv_idx))
    out, own = flex_attention(
        q, *pool(cache), to_physical(shifted, cache, chosen), to_physical(blocks, cache, chosen), enable_gqa=True,
        return_lse=True,
    )  # fmt: skip
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(own, lse)


def test_full_blocks_stay_full_but_for_the_last_page_of_a_sequence() -> None:
    cache, seqs = filled()
    blocks = create_block_mask(masks.always(), None, None, QUERIES, 80, BLOCK_SIZE=16)
    moved = to_physical(blocks, cache, seqs)
    kinds = moved.kinds()[:, 0, 0]
    assert moved.shape == (4, 1, QUERIES, 20 * 16)
    for entry, length in enumerate(LENGTHS):
        own = cache.block_table([seqs[entry]])[0].tolist()
        expected = [0] * 20
        for number, page in enumerate(own):
            expected[page] = 2 if (number + 1) * 16 <= length else 1
        assert kinds[entry].tolist() == expected
    assert int(moved.to_element_mask().sum()) == QUERIES * sum(LENGTHS)


def test_what_does_not_fit_is_refused() -> None:
    cache, seqs = filled()
    with pytest.raises(InputError, match="page_size=16 keys, got 32"):
        to_physical(create_block_mask(masks.causal(), None, None, 4, 80, BLOCK_SIZE=32), cache, seqs)
    with pytest.raises(InputError, match="70 keys, those of the longest sequence, got 64"):
        to_physical(create_block_mask(masks.causal(), None, None, 4, 64, BLOCK_SIZE=16), cache, seqs)
    ids = torch.zeros(2, 80, dtype=torch.int32)
    mask = create_block_mask(masks.document(doc_ids=ids), 2, None, 4, 80, BLOCK_SIZE=16)
    with pytest.raises(InputError, match="batch 1 or 4"):
        to_physical(mask, cache, seqs)
    with pytest.raises(KindError, match="MaskMod"):
        to_physical(masks.causal(), cache, seqs)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu() -> None:
    cache, seqs = filled("cuda")
    q = torch.randn(4, 4, QUERIES, 8, device="cuda")
    mask = MASKS["causal"]
    blocks = create_block_mask(at_the_end(mask, "cuda"), 4, None, QUERIES, 70, device="cuda", BLOCK_SIZE=(16, 16))
    out = flex_attention(q, *pool(cache), block_mask=to_physical(blocks, cache, seqs), enable_gqa=True)
    torch.testing.assert_close(out, cache.attend(q, seqs, mask_mod=mask_mod(mask)), atol=2e-5, rtol=2e-5)
