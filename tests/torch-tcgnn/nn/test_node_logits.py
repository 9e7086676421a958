"""Products of node features with attention vectors, by one matrix for few heads and one by one for many."""

from __future__ import annotations

import pytest
import torch
from torch_tcgnn.nn.attending import MOST_BLOCKS, node_logits


@pytest.mark.parametrize("heads", [1, 3, MOST_BLOCKS, MOST_BLOCKS + 1])
def test_one_matrix_and_single_products_give_the_same_values_and_gradients(heads: int) -> None:
    random = torch.Generator().manual_seed(0)
    shapes = [(5, heads, 4), (1, heads, 4), (1, heads, 4)]
    h, *vectors = (torch.randn(shape, generator=random, dtype=torch.float64).requires_grad_() for shape in shapes)
    found, want = node_logits(h, *vectors), [(h * vector).sum(-1) for vector in vectors]
    torch.testing.assert_close(list(found), want)
    grads = [torch.autograd.grad(sum((i + 1) * t.square().sum() for i, t in enumerate(ts)), [h, *vectors])
             for ts in (found, want)]  # fmt: skip
    torch.testing.assert_close(*grads)


def test_logits_of_half_precision_features_are_in_the_type_of_the_vectors() -> None:
    h, vector = torch.ones(2, 3, 4, dtype=torch.bfloat16), torch.ones(1, 3, 4)
    assert node_logits(h, vector)[0].dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert node_logits(h.float(), vector)[0].dtype == torch.float32
