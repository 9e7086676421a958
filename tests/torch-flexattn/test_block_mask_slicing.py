"""Parts of a block mask equal masks made for the part: same runs, same visible positions."""

from __future__ import annotations

import pytest
import torch
from torch_flexattn.block_mask import BlockMask
from torch_flexattn.build import create_block_mask
from torch_flexattn.errors import InputError
from torch_flexattn.mods import mask_mod

DOCUMENT = torch.arange(300) // 70
LENGTHS = torch.tensor([300, 120, 17])
WINDOWS = torch.tensor([20, 300])


@mask_mod
def visible(b, h, q, kv):
    return (q >= kv) & (kv < LENGTHS[b]) & (q - kv < WINDOWS[h]) & ((DOCUMENT[q] == DOCUMENT[kv]) | (kv < 40))


def whole(q_len=300, kv_len=250, block=(32, 48)):
    return create_block_mask(visible, 3, 2, q_len, kv_len, BLOCK_SIZE=block)


def same(part, dense, block):
    """A part is what looking at every position of the dense mask gives; its mask alone says so too."""
    assert torch.equal(part.to_element_mask(), dense)
    again = create_block_mask(part.mod, *part.shape, BLOCK_SIZE=block, method="exact")
    expanded = again.to_element_mask().expand(dense.shape)
    assert torch.equal(expanded, dense)
    expected = create_block_mask(lambda b, h, q, kv: dense[b, h, q, kv], *dense.shape, BLOCK_SIZE=block, method="exact")
    assert torch.equal(part.row_ptr, expected.row_ptr)
    assert torch.equal(part.runs, expected.runs)


@pytest.mark.parametrize(
    "start,stop", [(0, 300), (0, 100), (64, 300), (64, 200), (32, 33), (45, 200), (299, 300), (7, 7)]
)
def test_slice_of_queries(start, stop):
    mask = whole()
    same(mask.slice_q(start, stop), mask.to_element_mask()[:, :, start:stop], mask.block)


@pytest.mark.parametrize(
    "q_len,kv_len", [(300, 250), (256, 240), (257, 241), (100, 250), (300, 17), (0, 250), (300, 0)]
)
def test_crop(q_len, kv_len):
    mask = whole()
    same(mask.crop(q_len, kv_len), mask.to_element_mask()[:, :, :q_len, :kv_len], mask.block)


@pytest.mark.parametrize(
    "index,elements",
    [
        ((1,), (slice(1, 2),)),
        ((-1, 0), (slice(2, 3), slice(0, 1))),
        ((slice(1, 3),), (slice(1, 3),)),
        ((slice(None, None, 2), 1), (slice(None, None, 2), slice(1, 2))),
        ((torch.tensor([2, 0, 0]),), ([2, 0, 0],)),
        ((torch.tensor([True, False, True]),), ([0, 2],)),
        ((slice(None), [1, 0]), (slice(None), [1, 0])),
    ],
)
def test_batches_and_heads(index, elements):
    mask = whole()
    dense = mask.to_element_mask()
    for dimension, chosen in enumerate(elements):
        dense = dense.index_select(dimension, torch.arange(dense.shape[dimension])[chosen])
    same(mask[index], dense, mask.block)


@pytest.mark.parametrize("rows,queries", [
    (2, range(64, 96)), (-1, range(288, 300)), (slice(2, 5), range(64, 160)), (slice(4, None), range(128, 300)),
    (slice(None, None, 3), [*range(32), *range(96, 128), *range(192, 224), *range(288, 300)]),
    (torch.tensor([3, 1]), [*range(96, 128), *range(32, 64)]), ([0, 9], [*range(32), *range(288, 300)]),
])  # fmt: skip
def test_rows_of_blocks(rows, queries):
    mask = whole()
    same(mask[:, :, rows], mask.to_element_mask()[:, :, list(queries)], mask.block)


def test_parts_of_parts():
    mask = whole()
    part = mask[1:, 1].slice_q(33, 250).crop(200, 100)[:, :, 1:3].slice_q(5, 60)
    same(part, mask.to_element_mask()[1:, 1:2, 33 + 32 + 5 : 33 + 32 + 60, :100], mask.block)


def test_part_of_a_mask_that_is_the_same_for_all():
    mask = create_block_mask(lambda b, h, q, kv: q >= kv, 8, 4, 300, 300, BLOCK_SIZE=32)
    assert mask.shape == (1, 1, 300, 300)
    assert mask[5, 2].shape == (1, 1, 300, 300)
    assert torch.equal(mask[5, 2].runs, mask.runs)


def test_another_offset_is_the_same_program():
    mask = whole()
    assert mask.slice_q(33, 100).mod.program == mask.slice_q(50, 120).mod.program
    assert mask.slice_q(33, 100).mod.program != mask.mod.program


def test_mask_without_partial_blocks():
    mask = create_block_mask(lambda b, h, q, kv: True, None, None, 100, 100, BLOCK_SIZE=32)
    assert mask.mod is None
    for part in (mask.slice_q(5, 90), mask.slice_q(32, 90), mask.crop(85, 100), mask.slice_q(0, 85)):
        assert part.mod is None
        assert bool(part.to_element_mask().all())
        assert part.nnz_blocks() == (0, part.geometry.rows * 4)


def listed():
    indices = torch.tensor([[[[0, 2], [1, 3], [0, 3]]]])
    return BlockMask.from_block_indices(indices, q_len=90, kv_len=120, block=(32, 32), mod=visible)


def test_list_of_blocks_cut_at_blocks():
    mask = listed()
    assert torch.equal(mask.slice_q(32, 80).to_element_mask(), mask.to_element_mask()[:, :, 32:80])
    assert torch.equal(mask.crop(50, 70).to_element_mask(), mask.to_element_mask()[:, :, :50, :70])


def test_list_of_blocks_is_not_cut_inside_a_block():
    with pytest.raises(InputError, match=r"start must be a multiple of the block .32.*got 5"):
        listed().slice_q(5, 80)


@pytest.mark.parametrize("start,stop", [(-1, 5), (5, 4), (0, 301)])
def test_slice_outside(start, stop):
    with pytest.raises(InputError, match=f"300 queries.*start={start}, stop={stop}"):
        whole().slice_q(start, stop)


@pytest.mark.parametrize("q_len,kv_len", [(301, 250), (300, 251), (-1, 3)])
def test_crop_outside(q_len, kv_len):
    with pytest.raises(InputError, match=f"300 queries and 250 keys, got q_len={q_len}, kv_len={kv_len}"):
        whole().crop(q_len, kv_len)


@pytest.mark.parametrize("index", [(3,), (-4,), (0, 2), (0, 0, 10), (torch.tensor([3]),), (0, [2])])
def test_index_outside(index):
    with pytest.raises(IndexError, match="outside a mask of"):
        whole()[index]


def test_too_many_indices():
    with pytest.raises(IndexError, match=r"three indices.*got 4"):
        whole()[0, 0, 0, 0]


def test_short_row_only_at_the_end():
    with pytest.raises(InputError, match="last row of blocks has only 12 queries"):
        whole()[:, :, [9, 0]]
