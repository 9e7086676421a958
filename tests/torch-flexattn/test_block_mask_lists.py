"""Block masks from lists of blocks."""

from __future__ import annotations

import pytest
import torch
import torch.utils._pytree as pytree
from torch_flexattn import flex_attention, masks, reference
from torch_flexattn.block_mask import BlockMask
from torch_flexattn.call import Call, pack, unpack
from torch_flexattn.errors import InputError, KindError
from torch_flexattn.mods import MaskMod
from torch_flexattn.runs import transpose

from_lists = BlockMask.from_block_indices


def causal(b, h, q, kv):
    return q >= kv


def random_lists(seed, batches=2, heads=3, rows=4, columns=9, room=6):
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(batches, heads, rows, columns, generator=generator).argsort(-1)[..., :room].to(torch.int32)
    number = torch.randint(0, room + 1, (batches, heads, rows), generator=generator, dtype=torch.int32)
    kinds = torch.zeros(batches, heads, rows, columns, dtype=torch.int8)
    listed = torch.arange(room) < number[..., None]
    kinds.scatter_reduce_(-1, order.long(), listed.to(torch.int8) * 2, "amax")
    return order, number, kinds


@pytest.mark.parametrize("seed", range(20))
def test_listed_blocks_are_full(seed):
    indices, number, kinds = random_lists(seed)
    mask = from_lists(indices, number, q_len=4 * 16, kv_len=9 * 32 - 5, block=(16, 32))
    assert torch.equal(mask.kinds(), kinds)
    assert mask.shape == (2, 3, 64, 283)
    used = mask.runs[: int(mask.row_ptr[-1])]
    assert mask.runs.shape[0] == indices.numel()  # room for all
    ends = {(int(row), int(run[0])) for row, run in zip(torch.arange(24).repeat_interleave(mask.row_ptr.diff()), used)}
    for row, run in zip(torch.arange(24).repeat_interleave(mask.row_ptr.diff()).tolist(), used.tolist()):
        assert (row, run[1] >> 1) not in ends  # neighbours are one run


@pytest.mark.parametrize("seed", range(20))
def test_a_mask_holds_inside_the_listed_blocks(seed):
    indices, number, kinds = random_lists(seed, rows=9)
    windows = torch.tensor([10, 90, 200])

    def visible(b, h, q, kv):
        return (q >= kv) & (q - kv < windows[h])

    mask = from_lists(indices, number, q_len=9 * 32 - 3, kv_len=9 * 32, block=(32, 32), mod=visible)
    index = [torch.arange(n).view([-1 if d == k else 1 for k in range(4)]) for d, n in enumerate((2, 3, 285, 288))]
    shown = kinds.repeat_interleave(32, 2)[:, :, :285].repeat_interleave(32, 3) > 0
    assert torch.equal(mask.to_element_mask(), shown & visible(*index))
    assert (
        0 < mask.nnz_blocks()[0] < int((kinds > 0).sum())
    )  # of these masks ranges tell all: the diagonals are partial


def test_methods_do_not_see_the_spare_room():
    indices, number, kinds = random_lists(3)
    mask = from_lists(indices, number, q_len=64, kv_len=9 * 16, block=(16, 16))
    assert mask.nnz_blocks() == (0, int((kinds > 0).sum()))
    assert torch.equal(mask.row_cost(), (kinds > 0).flatten(0, 2).sum(1).float())
    assert torch.equal(mask[1, 2].kinds(), kinds[1:2, 2:3])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("mod", [None, causal])
def test_columns_are_those_of_the_runs_in_use(seed, mod):
    indices, number, _ = random_lists(seed, rows=7)
    mask = from_lists(indices, number, q_len=7 * 16, kv_len=9 * 16, block=(16, 16), mod=mod)
    found, expected = mask.transpose_runs(), transpose(mask.row_ptr, mask.runs, 6, 7, 9)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1][: int(found[0][-1])], expected[1])
    assert found[1].shape[0] == indices.numel()  # room for all


@pytest.mark.parametrize("mod", [None, causal, masks.sliding_window(20), masks.document([0, 7, 48])])
def test_nothing_waits_for_the_device(mod):
    """Tensors of the meta device have no data that something could wait for."""
    indices, number, _ = (t.to("meta") for t in random_lists(0, rows=3))
    mod = mod.to("meta") if isinstance(mod, MaskMod) else mod
    mask = from_lists(indices, number, q_len=48, kv_len=9 * 16, block=(16, 16), mod=mod)
    assert mask.runs.shape == (indices.numel(), 2)
    assert [t.shape for t in mask.transpose_runs()] == [(2 * 3 * 9 + 1,), (indices.numel(), 2)]


def test_trees_and_packed_calls_know_the_room():
    """Compiled code has masks as these; without the room its backward pass would wait for the device."""
    indices, number, _ = random_lists(0)
    mask = from_lists(indices, number, q_len=64, kv_len=9 * 16, block=(16, 16), mod=causal)
    leaves, spec = pytree.tree_flatten(mask)
    assert pytree.tree_unflatten(leaves, spec).room == indices.numel()
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec
    q, k = torch.zeros(2, 3, 64, 8), torch.zeros(2, 3, 9 * 16, 8)
    packed = pack(Call(mask, None, 1.0))
    assert unpack(q, k, *packed).mask.room == indices.numel()
    assert unpack(q, k, *pack(Call(mask[:, :, 1:], None, 1.0))).mask.room is None


def test_all_count_without_numbers():
    mask = from_lists(torch.tensor([[[[2, 0], [1, 0]]]]), q_len=32, kv_len=48, block=(16, 16))
    assert mask.kinds().tolist() == [[[[2, 0, 2], [2, 2, 0]]]]


def test_empty_lists():
    mask = from_lists(torch.zeros(1, 2, 3, 0, dtype=torch.int32), q_len=48, kv_len=48, block=(16, 16), mod=causal)
    assert mask.row_ptr.tolist() == [0] * 7
    assert not mask.kinds().any()
    assert not mask.transpose_runs()[0].any()


@pytest.mark.parametrize("bad", [4, -1])
def test_index_out_of_range(bad):
    indices = torch.tensor([[[[1, bad], [0, 1]]]])
    with pytest.raises(InputError, match=f"kv_indices must be from 0 to 3, got {bad}"):
        from_lists(indices, q_len=32, kv_len=64, block=(16, 16))
    assert from_lists(indices, q_len=32, kv_len=64, block=(16, 16), check=False).kinds().tolist() == [
        [[[0, 2, 0, 0], [2, 2, 0, 0]]]
    ]


def test_what_does_not_count_may_be_anything():
    indices = torch.tensor([[[[1, 99], [0, 0]]]])
    mask = from_lists(indices, torch.tensor([[[1, 1]]]), q_len=32, kv_len=32, block=(16, 16))
    assert mask.kinds().tolist() == [[[[0, 2], [2, 0]]]]


def test_repeated_index():
    indices = torch.tensor([[[[1, 0, 1], [0, 2, 2]]]])
    with pytest.raises(InputError, match="names block 1 twice in one row"):
        from_lists(indices, q_len=32, kv_len=48, block=(16, 16))
    assert from_lists(indices, q_len=32, kv_len=48, block=(16, 16), check=False).kinds().tolist() == [
        [[[2, 2, 0], [2, 0, 2]]]
    ]


def test_shapes_that_do_not_fit():
    indices = torch.zeros(1, 1, 2, 1, dtype=torch.int32)
    with pytest.raises(InputError, match=r"kv_num \[batches, heads, rows\], got .1, 1, 2, 1. and .1, 1, 3."):
        from_lists(indices, torch.ones(1, 1, 3, dtype=torch.int32), q_len=32, kv_len=32, block=(16, 16))
    with pytest.raises(InputError, match="q_len=64 has 4 rows of blocks, but kv_indices has 2"):
        from_lists(indices, q_len=64, kv_len=32, block=(16, 16))
    with pytest.raises(InputError, match=r"block must be multiples of 16, got .16, 20."):
        from_lists(indices, q_len=32, kv_len=32, block=(16, 20))


def test_indices_that_are_no_integers():
    with pytest.raises(KindError, match=r"kv_indices must be integers, got torch.float32"):
        from_lists(torch.zeros(1, 1, 2, 1), q_len=32, kv_len=32, block=(16, 16))


def test_lists_of_key_heads_serve_their_query_heads():
    indices, number, kinds = random_lists(3, heads=2)
    windows = torch.tensor([10, 90, 200, 30, 60, 5])

    def visible(b, h, q, kv):
        return (q >= kv) & (q - kv < windows[h])

    sizes = {"q_len": 64, "kv_len": 144, "block": (16, 16)}
    mask = from_lists(indices, number, group=3, **sizes)
    assert mask.shape == (2, 6, 64, 144)
    assert torch.equal(mask.kinds(), kinds.repeat_interleave(3, 1))
    mine = from_lists(indices, number, group=3, mod=visible, **sizes)
    whole = from_lists(indices.repeat_interleave(3, 1), number.repeat_interleave(3, 1), mod=visible, **sizes)
    assert torch.equal(mine.to_element_mask(), whole.to_element_mask())
    draw = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 6, 64, 8, generator=draw), torch.randn(2, 2, 144, 8, generator=draw)
    out = flex_attention(q, k, k, block_mask=mine, enable_gqa=True)
    shown = mine.to_element_mask()
    expected = reference.attention(q, k, k, mask_mod=lambda b, h, i, j: shown[b, h, i, j])[0]
    torch.testing.assert_close(out, expected.to(out.dtype))
