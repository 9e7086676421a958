"""One call of every factory of attention-gym."""

from __future__ import annotations

import torch
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


def made(name):
    """What a factory returns."""
    if name in MASKS:
        return MASKS[name](getattr(masks, f"generate_{name}"))
    return SCORES[name](getattr(mods, f"generate_{name}"))
