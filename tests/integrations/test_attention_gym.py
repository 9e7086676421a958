"""Masks and score modifications of attention-gym are plain functions: flex_attention takes them as they are."""

import pytest
import torch
from torch.nn.attention import flex_attention as theirs
from torch_flexattn import UnsupportedModError, create_mask, flex_attention, mask_mod, score_mod

pytest.importorskip("attn_gym", reason="attention-gym is not installed here")

from attn_gym import masks, mods

LENGTH, HEADS = 24, 2
RNG = torch.Generator().manual_seed(0)
BOUNDS = torch.tensor([0, 5, 16, LENGTH])
GRAPH = torch.rand(1, LENGTH, LENGTH, generator=RNG) > 0.8
EDGES = torch.randint(0, 4, (1, LENGTH, LENGTH), generator=RNG)
TREE = [-1, 0, 0, 1, 1, 2, 3, 0, 4, 5, 1, 2, 3, 4, 5, 6, 7, 8]

MASKS = {
    "block_diffusion_mask": lambda f: f(12, 3),
    "dilated_sliding_window": lambda f: f(9, 2),
    "doc_mask_mod": lambda f: f(masks.causal_mask, BOUNDS),
    "global_sliding_window": lambda f: f(3, torch.arange(LENGTH) % 11 == 0),
    "jetspec_training_mask_mod": lambda f: f(4, 5),
    "jetspec_tree_causal_mask_mod": lambda f: f(6, masks.build_tree_ancestor_matrix(TREE, device="cpu")),
    "morton_natten": lambda f: f(4, 4, 3, 3),
    "natten": lambda f: f(6, 4, 3, 3),
    "packed_causal_doc_mask_mod": lambda f: f(BOUNDS),
    "prefix_lm_mask": lambda f: f(7),
    "shared_prefix_mask_mod": lambda f: f(BOUNDS, torch.zeros(3, dtype=torch.long)),
    "sliding_window": lambda f: f(5),
    "spatial_head_mask_mod": lambda f: f(4, 5, 4, 1, True, 2),
    "sta_mask_mod_2d": lambda f: f((4, 4), (2, 2), (2, 2), 4),
    "sta_mask_mod_3d": lambda f: f((2, 4, 2), (2, 2, 2), (1, 2, 2), 4),
    "temporal_head_mask_mod": lambda f: f(4, 5, 4, 3),
    "tiled_natten": lambda f: f(6, 4, 3, 3, 3, 2),
    "vision_cross_attention_mask_mod": lambda f: f(torch.tensor([[0, 8], [8, 20], [3, 12]]), 8),
}
SCORES = {
    "activation_score_mod": lambda f: f(),
    "alibi_bias": lambda f: f(HEADS),
    "graphormer_edge_bias": lambda f: f(
        torch.randn(HEADS, 3, 4, generator=RNG), *mods.shortest_path_edge_types(GRAPH, EDGES, 3)
    ),
    "graphormer_spatial_bias": lambda f: f(
        torch.randn(HEADS, 5, generator=RNG), mods.shortest_path_distances(GRAPH, 3)
    ),
    "sandwich_bias": lambda f: f(HEADS, LENGTH, 8),
    "tanh_softcap": lambda f: f(2),
}
READ_VECTORS = {"vsa_mask_mod", "mla_rope_score_mod"}
"""They compute with whole vectors for one pair of query and key, which kernels here do not."""


def sizes(name):
    """Queries and keys that a mask is for."""
    return {"morton_natten": (16, 16), "jetspec_tree_causal_mask_mod": (len(TREE), LENGTH)}.get(name, (LENGTH, LENGTH))


def test_every_factory_of_attention_gym_is_tried():
    there = {name.removeprefix("generate_") for room in (masks, mods) for name in vars(room) if "generate_" in name}
    assert there == {*MASKS, *SCORES, *READ_VECTORS}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_is_what_it_was(name):
    mask = MASKS[name](getattr(masks, f"generate_{name}"))
    expected = theirs.create_mask(mask, 1, HEADS, *sizes(name), device="cpu")
    assert torch.equal(create_mask(mask, 1, HEADS, *sizes(name), device="cpu").expand_as(expected), expected)


def test_masks_made_of_masks_are_what_they_were():
    for mask in (masks.causal_mask, masks.batchify_mask_mod(masks.causal_mask, 6)):
        both = theirs.and_masks(mask, masks.generate_sliding_window(4))
        expected = theirs.create_mask(both, 1, 1, LENGTH, LENGTH, device="cpu")
        assert torch.equal(create_mask(both, 1, 1, LENGTH, LENGTH, device="cpu"), expected)


@pytest.mark.parametrize("name", SCORES)
def test_a_score_modification_is_what_it_was(name):
    score = SCORES[name](getattr(mods, f"generate_{name}"))
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
