"""Masks under PyTorch's names, shifted, of some heads and of batch entries; pictures and explanations by method."""

from __future__ import annotations

import pytest
import torch
import torch_flexattn as tfa
from torch_flexattn import create_block_mask, flex_attention, mask_mod, masks, scores, trace, viz
from torch_flexattn.functional import remembered


def window(b, h, q_idx, kv_idx):
    return (q_idx - kv_idx).abs() < 5


def test_names_of_pytorch_combine_masks_and_functions(dense):
    causal, near = masks.causal(), mask_mod(window)
    assert torch.equal(
        dense(tfa.and_masks(causal, window, masks.padding([9])), 20),
        dense(causal & near, 20)[..., :] & (torch.arange(20) < 9),
    )
    assert torch.equal(dense(tfa.or_masks(causal, window), 20), dense(causal | near, 20))
    assert torch.equal(dense(tfa.not_mask(window), 20), ~dense(near, 20))
    assert dense(tfa.noop_mask, 20).all()
    assert dense(tfa.and_masks(), 20).all()
    assert not dense(tfa.or_masks(), 20).any()


def test_a_shifted_mask_is_the_slice_of_a_longer_one(dense):
    mask = masks.causal() & masks.sliding_window(7) | masks.chunked(3)
    whole = dense(mask, 40)
    assert torch.equal(dense(mask.shift(11, 4), 20), whole[..., 11:31, 4:24])
    assert torch.equal(dense(mask.shift(kv=6), 20), whole[..., :20, 6:26])
    assert mask.shift(3, 2).program == mask.shift(8, 1).program  # the same kernels serve other offsets


@pytest.mark.parametrize("heads", [[0], [1, 2], [3, 0], [0, 2, 3], range(4), []])
def test_a_mask_on_some_heads_leaves_the_others_alone(heads, dense):
    near = mask_mod(window)
    seen, of_all = dense(near.on_heads(heads), 12, heads=4), dense(near, 12, heads=4)
    for head in range(4):
        assert torch.equal(seen[:, head], of_all[:, head] if head in heads else torch.ones_like(of_all[:, head]))


def test_batch_entries_have_masks_of_their_own(dense):
    lengths = torch.tensor([3, 8, 5, 9])
    given = [masks.causal(), window, masks.causal(), masks.padding(lengths), masks.sliding_window(4)]
    mask = tfa.MaskMod.per_batch(given)
    seen = dense(mask, 12, batch=6)
    for entry, own in enumerate(given):
        assert torch.equal(seen[entry], dense(mask_mod(own), 12, batch=6)[entry]), entry
    assert not seen[5].any()
    many = tfa.MaskMod.per_batch([masks.causal()] * 50 + [masks.sliding_window(3)] * 50)
    assert len(many.program.nodes) < 30


def test_attention_and_blocks_know_these_masks():
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 40, 8, generator=draw) for _ in range(3))
    local = masks.sliding_window(6).on_heads([0, 2]) & masks.causal()
    for mask in (local, tfa.MaskMod.per_batch([local, masks.causal().shift(3)])):
        expected = flex_attention(q, k, v, block_mask=mask, backend="reference")
        torch.testing.assert_close(flex_attention(q, k, v, block_mask=mask), expected)
    blocks = create_block_mask(local, 2, 3, 256, 256, BLOCK_SIZE=32)
    assert blocks.shape[:2] == (1, 3)
    assert torch.equal(blocks.to_element_mask(), tfa.create_mask(local, 1, 3, 256, 256))


def test_pictures_by_method_are_those_of_viz():
    mask = masks.prefix_lm(300)
    assert mask.viz(2048) == viz.text(mask, 2048)
    assert "2048 queries" in mask.viz(2048)
    assert mask.viz(8, 10, level="position") == viz.text(mask, 8, 10, level="position")
    assert create_block_mask(mask, None, None, 512, 512).viz(cells=4) == viz.text(
        create_block_mask(mask, None, None, 512, 512), cells=4
    )
    assert scores.alibi(4).viz(16, head=2) == viz.text(scores.alibi(4), 16, head=2)


def test_mods_explain_themselves():
    assert tfa.explain(window).depends_on == ("kv", "q")
    assert masks.causal().explain(2048) == tfa.explain(masks.causal(), 2048)
    assert scores.softcap(2.0).explain() == tfa.explain(scores.softcap(2.0))
    assert {f.name for f in tfa.doctor()} >= {"Python", "PyTorch"}


def test_cleared_caches_record_and_build_anew():
    q = torch.randn(1, 1, 32, 8)
    mask = mask_mod(window)
    for _ in range(3):
        flex_attention(q, q, q, block_mask=mask)
    assert trace._recipes
    assert remembered._calls
    tfa.clear_caches()
    assert not trace._recipes
    assert not remembered._calls
    tfa.reset_stats()
    flex_attention(q, q, q, block_mask=window)
    assert (tfa.stats().masks_built, tfa.stats().masks_reused) == (1, 0)
