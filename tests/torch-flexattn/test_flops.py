"""Operations of attention: by the formula, and as PyTorch's counter counts them."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from torch_flexattn import attention_flops, create_block_mask, flex_attention, masks, register_flop_formulas, scores


def test_visible_pairs_count_and_computed_ones_on_request():
    mask = create_block_mask(masks.causal(), None, None, 300, 300, BLOCK_SIZE=128)
    assert attention_flops(mask, 4, 8, 16, batch=2) == 2 * 4 * (300 * 301 // 2) * 2 * 24
    assert attention_flops(mask, 4, 8, 16, backward=True) == 4 * (300 * 301 // 2) * 2 * 56
    blocks = 128 * 128 + 128 * 256 + 44 * 300
    assert attention_flops(mask, 1, 8, useful=False) == blocks * 32


def test_masks_by_head_and_batch_count_every_plane():
    width = torch.tensor([[1, 5], [20, 3]])
    mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < width[b, h]), 2, 2, 40, 40)
    pairs = sum(min(i + 1, int(w)) for w in width.flatten() for i in range(40))
    assert attention_flops(mask, 2, 1) == pairs * 4


def test_the_counter_of_pytorch_counts_forward_and_backward():
    register_flop_formulas()
    register_flop_formulas()
    q = torch.randn(2, 4, 20, 8, requires_grad=True)
    k = torch.randn(2, 2, 20, 8)
    with FlopCounterMode(display=False) as counter:
        out = flex_attention(q, k, k, scores.alibi(4), masks.causal(), enable_gqa=True)
    assert counter.get_total_flops() == 2 * 4 * 210 * 32
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    assert counter.get_total_flops() in (0, 2 * 4 * 210 * 80)
    with FlopCounterMode(display=False) as counter:
        flex_attention(q, k, k, enable_gqa=True).sum().backward()
    assert counter.get_total_flops() == 2 * 4 * 400 * (32 + 80)


def test_other_heads_than_the_mask_has_are_refused():
    mask = create_block_mask(lambda b, h, i, j: i >= j + h, 1, 3, 8, 8)
    with pytest.raises(ValueError, match="batch 1 and 3 heads, but batch and Hq are 1 and 4"):
        attention_flops(mask, 4, 8)
