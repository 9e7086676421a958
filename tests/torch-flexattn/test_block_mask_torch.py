"""To and from PyTorch's block mask."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import flex_attention as theirs
from torch_flexattn.block_mask import BlockMask
from torch_flexattn.build import create_block_mask
from torch_flexattn.errors import InputError, KindError

DOCUMENT = torch.arange(300) // 70
LENGTHS = torch.tensor([300, 120])


def causal(b, h, q, kv):
    return q >= kv


def documents(b, h, q, kv):
    return (DOCUMENT[q] == DOCUMENT[kv]) & (kv < LENGTHS[b])


def everything(b, h, q, kv):
    return q >= 0


def nothing(b, h, q, kv):
    return q < 0


MASKS = {
    "causal": causal,
    "documents": documents,
    "everything": everything,
    "nothing": nothing,
    "noop": theirs.noop_mask,
}


@pytest.mark.parametrize("q_len,kv_len", [(256, 256), (300, 290), (64, 300)])
@pytest.mark.parametrize("name", MASKS)
def test_same_as_theirs(name, q_len, kv_len):
    heads_matter = name == "documents"
    sizes = (2 if heads_matter else 1, 1, q_len, kv_len)
    expected = theirs.create_block_mask(MASKS[name], *sizes, device="cpu", BLOCK_SIZE=(64, 32))
    mask = create_block_mask(MASKS[name], *sizes, BLOCK_SIZE=(64, 32))
    given = mask.to_torch()
    assert given.shape == expected.shape
    assert given.BLOCK_SIZE == expected.BLOCK_SIZE
    for field in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices"):
        assert torch.equal(getattr(given, field), getattr(expected, field)), field
    back = BlockMask.from_torch(expected)
    assert torch.equal(back.row_ptr, mask.row_ptr)
    assert torch.equal(back.runs, mask.runs)
    assert torch.equal(BlockMask.from_torch(given).runs, mask.runs)
    assert torch.equal(back.to_element_mask(), mask.to_element_mask())
    assert mask.sparsity() == pytest.approx(expected.sparsity(), abs=1e-9) or q_len % 64 or kv_len % 32
    assert mask.numel() == expected.numel()
    assert torch.equal(mask.to_dense(), expected.to_dense())


def test_equal_batches_and_heads_are_kept_once():
    given = theirs.create_block_mask(causal, 3, 4, 300, 300, device="cpu", BLOCK_SIZE=64)
    assert given.shape == (3, 4, 300, 300)
    mask = BlockMask.from_torch(given)
    assert mask.shape == (1, 1, 300, 300)
    assert torch.equal(mask.runs, create_block_mask(causal, 3, 4, 300, 300, BLOCK_SIZE=64).runs)
    given.kv_num_blocks[1, :, 2] = 0
    assert BlockMask.from_torch(given).shape == (3, 1, 300, 300)
    assert BlockMask.from_torch(given).kinds()[:, 0, 2].tolist() == [[2, 2, 1, 0, 0], [2, 2, 0, 0, 0], [2, 2, 1, 0, 0]]
    given.kv_num_blocks[:, 3, 1] = 0
    assert BlockMask.from_torch(given).shape == (3, 4, 300, 300)


def test_lists_of_three_dimensions():
    number, indices = torch.tensor([[1, 2]], dtype=torch.int32), torch.tensor([[[0, 1], [0, 1]]], dtype=torch.int32)
    mask = BlockMask.from_torch(theirs.BlockMask.from_kv_blocks(number, indices, BLOCK_SIZE=32, mask_mod=causal))
    assert mask.kinds().tolist() == [[[[1, 0], [2, 1]]]]


def test_lists_are_kept():
    number, indices = torch.tensor([[[1, 2]]], dtype=torch.int32), torch.tensor([[[[1, 0], [0, 1]]]], dtype=torch.int32)
    full_number, full_indices = torch.tensor([[[1, 0]]], dtype=torch.int32), torch.zeros(1, 1, 2, 2, dtype=torch.int32)
    given = theirs.BlockMask.from_kv_blocks(number, indices, full_number, full_indices, BLOCK_SIZE=32, mask_mod=causal)
    mask = BlockMask.from_torch(given)
    assert mask.kinds().tolist() == [[[[2, 0], [2, 1]]]]  # a full block may break the mask; the others obey it
    assert mask.listed


def test_partial_blocks_only():
    number, indices = torch.tensor([[[1, 2]]], dtype=torch.int32), torch.tensor([[[[0, 1], [0, 1]]]], dtype=torch.int32)
    mask = BlockMask.from_torch(theirs.BlockMask.from_kv_blocks(number, indices, BLOCK_SIZE=32, mask_mod=causal))
    assert mask.kinds().tolist() == [[[[1, 0], [2, 1]]]]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_their_attention_takes_ours():
    torch.manual_seed(0)
    mask = create_block_mask(lambda b, h, q, kv: documents(b, h, q, kv) & (q >= kv), 2, None, 300, 300)
    query, key, value = (torch.randn(2, 3, 300, 16) for _ in range(3))
    visible = mask.to_element_mask() | ~mask.to_element_mask().any(-1, keepdim=True)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)
    expected = expected * mask.to_element_mask().any(-1, keepdim=True)
    out = theirs.flex_attention(query, key, value, block_mask=mask.to_torch())
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=2e-6)


def test_something_else():
    with pytest.raises(KindError, match="torch BlockMask, got int"):
        BlockMask.from_torch(3)


def test_their_slice_has_lost_its_mask():
    with pytest.raises(InputError, match="lost its mask_mod"):
        BlockMask.from_torch(theirs.create_block_mask(causal, None, None, 256, 256, device="cpu")[:, :, :1])


def test_their_block_of_odd_size():
    with pytest.raises(InputError, match=r"BLOCK_SIZE must be multiples of 16, got .24, 24."):
        BlockMask.from_torch(theirs.create_block_mask(causal, None, None, 240, 240, device="cpu", BLOCK_SIZE=24))
