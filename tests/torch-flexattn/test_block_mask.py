"""What a block mask tells, and how it travels."""

from __future__ import annotations

import io
import pickle

import pytest
import torch
import torch.utils._pytree as pytree
from torch_flexattn import masks
from torch_flexattn.block_mask import BlockMask
from torch_flexattn.build import create_block_mask, create_mask
from torch_flexattn.errors import InputError

DOCUMENT = torch.arange(300) // 70
WINDOWS = torch.tensor([20, 300])


def make(**options):
    limit = 40
    return create_block_mask(
        lambda b, h, q, kv: (q >= kv) & (q - kv < WINDOWS[h]) & ((DOCUMENT[q] == DOCUMENT[kv]) | (kv < limit)),
        3, 2, 300, 250, BLOCK_SIZE=(32, 48), **options,
    )  # fmt: skip


def equal(a, b):
    assert (a.shape, a.block, a.listed) == (b.shape, b.block, b.listed)
    assert torch.equal(a.row_ptr, b.row_ptr)
    assert torch.equal(a.runs, b.runs)
    assert torch.equal(a.to_element_mask(), b.to_element_mask())


def test_batches_and_heads_only_where_they_matter():
    assert make().shape == (1, 2, 300, 250)


def test_figures():
    mask = make()
    kinds = mask.kinds()
    partial, full = int((kinds == 1).sum()), int((kinds == 2).sum())
    assert mask.nnz_blocks() == (partial, full)
    assert kinds.shape == (1, 2, 10, 6)
    assert mask.density == pytest.approx((partial + full) / 120)
    assert mask.sparsity() == pytest.approx(100 - 100 * (partial + full) / 120)
    assert mask.numel() == 2 * 300 * 250
    assert torch.equal(mask.to_dense(), (kinds > 0).int())
    assert torch.allclose(mask.row_cost(), ((kinds == 2) + 1.15 * (kinds == 1)).sum(-1).flatten().float())
    assert mask.visible_pairs() == int(mask.to_element_mask().sum())
    assert mask.BLOCK_SIZE == (32, 48)


def test_every_position():
    mask = make()
    expected = create_mask(mask.mod, 3, 2, 300, 250)
    assert expected.shape == (3, 2, 300, 250)
    assert torch.equal(mask.to_element_mask().expand(3, 2, 300, 250), expected)


def test_columns_are_made_once():
    mask = make()
    before = mask.memory_bytes()
    assert mask.transpose_runs() is mask.transpose_runs()
    assert mask.memory_bytes() > before == 4 * (mask.row_ptr.numel() + mask.runs.numel())


def test_columns_are_made_at_once_where_asked():
    planned = make(compute_plan=True)
    equal(planned, make())
    assert planned.memory_bytes() > make().memory_bytes()
    assert torch.equal(planned.transpose_runs()[1], make().transpose_runs()[1])


@pytest.mark.parametrize("way", ["file", "bytes", "pickle", "tree", "device"])
def test_travels(way, tmp_path):
    mask = make()
    if way == "file":
        mask.save(tmp_path / "mask.pt")
        other = BlockMask.load(tmp_path / "mask.pt")
    elif way == "bytes":
        buffer = io.BytesIO()
        mask.save(buffer)
        buffer.seek(0)
        other = BlockMask.load(buffer, device="cpu")
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(mask))
    elif way == "tree":
        leaves, spec = pytree.tree_flatten({"mask": mask})
        assert len(leaves) == 4
        assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
        spec = pytree.treespec_loads(pytree.treespec_dumps(spec))
        other = pytree.tree_unflatten(leaves, spec)["mask"]
    else:
        other = mask.to("cpu")
    equal(mask, other)
    assert other.mod.program == mask.mod.program
    assert other.mod.scalars == (40,)
    equal(mask.slice_q(33, 100), other.slice_q(33, 100))


def test_travels_without_partial_blocks():
    mask = create_block_mask(lambda b, h, q, kv: True, None, None, 100, 100)
    equal(mask, pickle.loads(pickle.dumps(mask)))
    leaves, spec = pytree.tree_flatten(mask)
    equal(mask, pytree.tree_unflatten(leaves, spec))


def test_device_of_a_meta_mask():
    mask = make().to("meta")
    assert {t.device.type for t in pytree.tree_leaves(mask)} == {"meta"}
    assert mask.device.type == "meta"


@pytest.mark.parametrize("content", [b"", b"text, not a file of PyTorch", b"\x80\x02}q\x00", b"PK\x03\x04 cut short"])
def test_file_that_is_none_of_pytorch(tmp_path, content):
    (tmp_path / "mask.pt").write_bytes(content)
    with pytest.raises(InputError, match=r"path '.*mask.pt' holds no block mask: \w+$"):
        BlockMask.load(tmp_path / "mask.pt")


def test_masks_that_wait_for_the_lengths_get_them():
    mask = masks.causal("bottom_right")
    assert create_mask(mask, None, None, 2, 3).tolist() == [[[[True, True, False], [True, True, True]]]]
    assert create_block_mask(mask, None, None, 32, 64, BLOCK_SIZE=16).nnz_blocks() == (2, 5)


def test_file_of_something_else(tmp_path):
    torch.save({"format": 99}, tmp_path / "mask.pt")
    with pytest.raises(InputError, match="not a saved BlockMask of format 1, got 99"):
        BlockMask.load(tmp_path / "mask.pt")
    torch.save([1], tmp_path / "list.pt")
    with pytest.raises(InputError, match="got 'list'"):
        BlockMask.load(tmp_path / "list.pt")


def test_text():
    mask = create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 64, 64, BLOCK_SIZE=16)
    assert str(mask).splitlines() == [
        "BlockMask(shape=(1, 1, 64, 64), sparsity=37.50%, partial=4, full=6", "▒", "█▒", "██▒", "███▒)",
    ]  # fmt: skip
    assert repr(mask) == "BlockMask(1×1×64×64, block=16×16, runs=7, device=cpu)"
    many = create_block_mask(lambda b, h, q, kv: q >= kv + h, None, 9, 9600, 9600, BLOCK_SIZE=16)
    lines = str(many).splitlines()
    assert lines[1] == "batch 0, head 0"
    assert lines[-1] == "… 5 more)"
    assert max(map(len, lines[1:])) <= 24
    assert lines[2] == "▒"  # a shade between: some of its blocks are hidden


def test_made_in_inference_mode_and_used_outside():
    with torch.inference_mode():
        mask = make()
        mask.transpose_runs()
    assert not mask.runs.is_inference()
    assert not mask.transpose_runs()[1].is_inference()
