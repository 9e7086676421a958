"""Plans of context parallelism: who holds which rows of blocks, and tensors cut by them."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch_flexattn import BlockMask, InputError, KindError, create_block_mask, masks
from torch_flexattn.parallel import gather_shards, shard, shard_plan, unshard

KINDS = ["contiguous", "zigzag", "balanced"]


def random_mask(seed: int, world: int) -> BlockMask:
    """Documents of random lengths; zig-zag chunks of one to three rows of blocks."""
    rng = torch.Generator().manual_seed(seed)
    length = 16 * 2 * world * int(torch.randint(1, 4, (), generator=rng))
    bounds = torch.randint(0, length, (5,), generator=rng).sort().values
    mask = masks.document(torch.tensor([0, *bounds.tolist(), length]))
    return create_block_mask(masks.causal() & mask, None, None, length, length, BLOCK_SIZE=16)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_row_of_blocks_is_held_once_and_all_ranks_hold_equally_many(kind, world):
    for seed in range(10):
        mask = random_mask(seed, world)
        plan = shard_plan(mask, world, kind)
        blocks = plan.length // 16
        assert plan.permutation.sort().values.tolist() == list(range(blocks))
        assert plan.permutation[plan.inverse].tolist() == list(range(blocks))
        assert plan.local_length * world == plan.length == mask.shape[2]
        costs = mask.row_cost()
        for rank in range(world):
            own = plan.positions(rank)
            assert own.dtype == torch.int32
            assert own.shape == (plan.local_length,)
            assert plan.costs[rank].item() == pytest.approx(float(costs[own[::16] // 16].sum()), rel=1e-6)
            assert bool((own.diff() > 0).all()) or kind == "zigzag"
        assert plan.costs.sum().item() == pytest.approx(float(costs.sum()), rel=1e-6)
        assert 1 <= plan.imbalance <= world


@pytest.mark.parametrize("kind", KINDS)
def test_shards_put_together_are_the_whole(kind):
    for world in (1, 2, 3):
        plan = shard_plan(random_mask(3, world), world, kind)
        x = torch.randn(2, 3, plan.length, requires_grad=True)
        parts = [shard(x, plan, rank, -1) for rank in range(world)]
        assert torch.equal(unshard(parts, plan, -1), x)
        assert torch.equal(unshard([p.movedim(2, 0) for p in parts], plan, 0), x.movedim(2, 0))
        weight = torch.randn_like(x)
        (unshard(parts, plan, 2) * weight).sum().backward()
        assert torch.equal(x.grad, weight)


def test_what_each_kind_assigns():
    mask = create_block_mask(masks.causal(), None, None, 128, 128, BLOCK_SIZE=16)
    rows = {kind: shard_plan(mask, 2, kind).permutation.view(2, 4).tolist() for kind in KINDS}
    assert rows["contiguous"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert rows["zigzag"] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    # 7 | 6, 5 | then 4 to the first, 3 to the first (11.3 and 11.3), …
    assert sorted(rows["balanced"][0] + rows["balanced"][1]) == list(range(8))
    assert 7 in rows["balanced"][0]
    assert {6, 5} <= set(rows["balanced"][1])


def test_balanced_is_even_where_contiguous_and_zigzag_are_not():
    lengths = [960, 16, 16, 16, 16] + [64] * 16
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    length = int(bounds[-1])
    mask = create_block_mask(masks.causal() & masks.document(bounds), None, None, length, length, BLOCK_SIZE=16)
    found = {kind: shard_plan(mask, 4, kind).imbalance for kind in KINDS}
    assert found["balanced"] < 1.02
    assert found["zigzag"] > 1.3
    assert found["contiguous"] > 2


def test_heads_and_batches_of_a_mask_count_together():
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) | (h == 1), None, 2, 64, 64, BLOCK_SIZE=16)
    plan = shard_plan(mask, 2, "contiguous")
    of_causal = [1.15 + 1 + 1.15, 2 + 1.15 + 3 + 1.15]
    assert plan.costs.tolist() == pytest.approx([of_causal[0] + 8, of_causal[1] + 8], rel=1e-6)


def test_a_mask_that_hides_everything_is_balanced():
    plan = shard_plan(create_block_mask(masks.never(), None, None, 64, 64, BLOCK_SIZE=16), 2)
    assert plan.imbalance == 1
    assert plan.local_length == 32


def test_a_plan_survives_pickle():
    plan = shard_plan(random_mask(1, 2), 2, "balanced")
    plan.positions(0)
    again = pickle.loads(pickle.dumps(plan))
    assert repr(again) == repr(plan)
    assert torch.equal(again.positions(1), plan.positions(1))


def test_positions_are_kept():
    plan = shard_plan(random_mask(1, 2), 2, "balanced")
    with torch.inference_mode():
        first = plan.positions(1)
    assert first is plan.positions(1)
    assert not first.is_inference()


@pytest.mark.parametrize(
    "length, world, kind, message",
    [
        (96, 4, "contiguous", "block_mask has 96 queries in blocks of 16, .* world=4 .* multiple of 64"),
        (96, 2, "zigzag", "zigzag .* multiple of 64"),
        (100, 2, "balanced", "multiple of 32"),
        (0, 1, "balanced", "block_mask has 0 queries"),
        (64, 0, "balanced", "world must be .* got 0"),
        (64, 2, "even", "kind must be .* got 'even'"),
    ],
)
def test_lengths_that_ranks_cannot_share(length, world, kind, message):
    mask = create_block_mask(masks.causal(), None, None, length, length, BLOCK_SIZE=16)
    with pytest.raises(InputError, match=message):
        shard_plan(mask, world, kind)


def test_masks_that_are_not_square_or_no_block_masks():
    with pytest.raises(InputError, match="as many queries as keys, got 64 and 128"):
        shard_plan(create_block_mask(masks.causal(), None, None, 64, 128, BLOCK_SIZE=16), 2)
    with pytest.raises(KindError, match="block_mask must be a BlockMask, got MaskMod"):
        shard_plan(masks.causal(), 2)


def test_tensors_that_do_not_fit():
    plan = shard_plan(create_block_mask(masks.causal(), None, None, 64, 64, BLOCK_SIZE=16), 2)
    x = torch.zeros(3, 64)
    with pytest.raises(InputError, match=r"x must have 64 tokens in dimension 0, got \(3, 64\)"):
        shard(x, plan, 0, 0)
    with pytest.raises(InputError, match=r"dim must be a dimension of x \(3, 64\), got 2"):
        shard(x, plan, 0, 2)
    with pytest.raises(KindError, match=r"dim must be an integer, got 1\.0"):
        shard(x, plan, 0, 1.0)
    with pytest.raises(InputError, match="rank must be from 0 to 1, got 2"):
        shard(x, plan, 2, 1)
    with pytest.raises(KindError, match="rank must be an integer, got '0'"):
        shard(x, plan, "0", 1)
    with pytest.raises(InputError, match="parts must be one of each of 2 ranks, got 1"):
        unshard([x], plan, 1)
    with pytest.raises(InputError, match=r"parts\[1\] must have 32 tokens in dimension 1, got \(3, 64\)"):
        unshard([x[:, :32], x], plan, 1)
    with pytest.raises(InputError, match=r"plan is for 2 ranks, but torch\.distributed is not initialized"):
        gather_shards(x[:, :32], plan, 1)
