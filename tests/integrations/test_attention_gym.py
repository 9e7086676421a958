"""Masks and score modifications of attention-gym are plain functions: flex_attention takes them as they are."""

import pytest
import torch
from torch.nn.attention import flex_attention as theirs
from torch_flexattn import UnsupportedModError, create_mask, flex_attention, mask_mod, score_mod

pytest.importorskip("attn_gym", reason="attention-gym is not installed here")

from attn_gym import masks, mods

from .attention_gym_cases import HEADS, LENGTH, MASKS, READ_VECTORS, SCORES, made, sizes


def test_every_factory_of_attention_gym_is_tried():
    there = {name.removeprefix("generate_") for room in (masks, mods) for name in vars(room) if "generate_" in name}
    assert there == {*MASKS, *SCORES, *READ_VECTORS}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_is_what_it_was(name):
    mask = made(name)
    expected = theirs.create_mask(mask, 1, HEADS, *sizes(name), device="cpu")
    assert torch.equal(create_mask(mask, 1, HEADS, *sizes(name), device="cpu").expand_as(expected), expected)


def test_masks_made_of_masks_are_what_they_were():
    for mask in (masks.causal_mask, masks.batchify_mask_mod(masks.causal_mask, 6)):
        both = theirs.and_masks(mask, masks.generate_sliding_window(4))
        expected = theirs.create_mask(both, 1, 1, LENGTH, LENGTH, device="cpu")
        assert torch.equal(create_mask(both, 1, 1, LENGTH, LENGTH, device="cpu"), expected)


@pytest.mark.parametrize("name", SCORES)
def test_a_score_modification_is_what_it_was(name):
    score = made(name)
    q, k, v = (torch.randn(1, HEADS, LENGTH, 8, generator=torch.Generator().manual_seed(n)) for n in range(3))
    weights = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)
    b, h, i, j = (
        torch.arange(n).view([-1 if d == own else 1 for d in range(4)])
        for own, n in enumerate((1, HEADS, LENGTH, LENGTH))
    )
    dense = (score(q @ k.mT / 8**0.5, b, h, i, j) + weights).softmax(-1) @ v
    torch.testing.assert_close(flex_attention(q, k, v, score_mod=score, block_mask=masks.causal_mask), dense)


def test_what_computes_with_vectors_is_refused_with_its_line():
    chosen = torch.zeros(1, HEADS, 4, 2, dtype=torch.long)
    with pytest.raises(UnsupportedModError, match=r"vsa\.py:\d+"):
        mask_mod(masks.generate_vsa_mask_mod(chosen, 6))
    rope = torch.zeros(1, HEADS, LENGTH, 4)
    with pytest.raises(UnsupportedModError, match=r"latent_attention\.py:\d+"):
        score_mod(mods.generate_mla_rope_score_mod(rope, rope, HEADS))
