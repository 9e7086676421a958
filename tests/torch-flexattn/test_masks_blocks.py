"""Masks given as tables, and those with global tokens, against their formulas."""

from __future__ import annotations

import pytest
import torch
from torch_flexattn import masks
from torch_flexattn.errors import InputError, KindError


def bools(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) > 0.5


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (3, 2, 3, 4), (1, 2, 3, 4), (3, 1, 3, 4), (1, 1, 3, 1)])
def test_blocks_are_visible_or_not(shape, dense, looped):
    table = bools(*shape)
    full = table.expand(3, 2, 3, 4)
    expected = looped(lambda b, h, i, j: full[b, h, i // 3, j // 2], 9, 8, batch=3, heads=2)
    assert torch.equal(dense(masks.block_sparse(table, (3, 2)), 9, 8, batch=3, heads=2), expected)


def test_dependencies_are_those_of_the_table():
    assert masks.block_sparse(bools(3, 4)).dependencies == {"q", "kv"}
    assert masks.block_sparse(bools(1, 2, 3, 4)).dependencies == {"h", "q", "kv"}
    assert masks.from_dense(bools(2, 1, 1, 4)).dependencies == {"b", "kv"}


@pytest.mark.parametrize("columns", [None, 5])
def test_listed_blocks_are_visible(columns, dense, looped):
    indices = torch.tensor([[[[0, 2], [3, -1]], [[1, 1], [-1, -1]]]])
    mask = masks.topk_blocks(indices, (2, 3), columns=columns)
    listed = indices[0].tolist()
    expected = looped(lambda b, h, i, j: j // 3 in listed[h][i // 2], 4, 12, heads=2)
    assert torch.equal(dense(mask, 4, 12, heads=2), expected)


def test_nothing_listed_is_nothing_visible(dense):
    assert not dense(masks.topk_blocks(torch.full((2, 3), -1), 2), 4).any()


@pytest.mark.parametrize("shape", [(5, 6), (2, 5, 6), (3, 2, 5, 6), (3, 1, 1, 6), (1, 1, 5, 1)])
def test_dense_masks(shape, dense):
    table = bools(*shape)
    assert torch.equal(dense(masks.from_dense(table), 5, 6, batch=3, heads=2), table.expand(3, 2, 5, 6))


def test_global_and_local_tokens(dense, looped):
    marked = [False, True, False, False, False, True, False, False]

    def near(i, j, w):
        return abs(i - j) <= w

    expected = looped(lambda b, h, i, j: near(i, j, 1) or marked[i] or marked[j], 8)
    assert torch.equal(dense(masks.global_local(1, is_global=torch.tensor(marked)), 8), expected)
    expected = looped(lambda b, h, i, j: near(i, j, 2) or i < 2 or j < 2, 8)
    assert torch.equal(dense(masks.global_local(2, 2), 8), expected)
    rows = bools(3, 8)
    expected = looped(lambda b, h, i, j: near(i, j, 0) or rows[b, i] or rows[b, j], 8, batch=3)
    assert torch.equal(dense(masks.global_local(0, is_global=rows), 8, batch=3), expected)


def test_longformer(dense, looped):
    def formula(i, j, d):
        return (abs(i - j) <= 2 * d and (i - j) % d == 0) or i < 1 or j < 1

    for d in (1, 3):
        expected = looped(lambda b, h, i, j, d=d: formula(i, j, d), 16)
        assert torch.equal(dense(masks.longformer(5, 1, dilation=d), 16), expected)
    of_head = [1, 2, 3]
    expected = looped(lambda b, h, i, j: formula(i, j, of_head[h]), 16, heads=3)
    assert torch.equal(dense(masks.longformer(4, 1, dilation=torch.tensor(of_head)), 16, heads=3), expected)


def test_bigbird(dense):
    mask = masks.bigbird(40, 4, n_window=3, n_global=1, n_random=2, heads=3)
    seen = dense(mask, 40, heads=3)
    blocks = seen[0].unflatten(-1, (10, 4)).unflatten(-3, (10, 4)).movedim(-3, -2)[..., 0, 0]
    assert torch.equal(seen[0], blocks.repeat_interleave(4, -1).repeat_interleave(4, -2))
    number = torch.arange(10)
    fixed = ((number[:, None] - number).abs() <= 1) | (number[:, None] == 0) | (number == 0)
    assert (blocks | ~fixed).all()
    assert ((blocks & ~fixed).sum(-1) == torch.tensor([0] + [2] * 9)).all()
    assert not torch.equal(blocks[0], blocks[1])
    again = masks.bigbird(40, 4, n_window=3, n_global=1, n_random=2, heads=3)
    assert torch.equal(dense(again, 40, heads=3), seen)
    other = masks.bigbird(40, 4, n_window=3, n_global=1, n_random=2, heads=3, seed=1)
    assert not torch.equal(dense(other, 40, heads=3), seen)


def test_bigbird_with_more_random_blocks_than_there_are_sees_all(dense):
    assert dense(masks.bigbird(10, 2, n_random=9), 10).all()


@pytest.mark.parametrize(
    "make, error, says",
    [
        (lambda: masks.block_sparse(torch.ones(2, 2)), KindError, "blocks must be a tensor of bool, got torch.float32"),
        (lambda: masks.block_sparse(bools(2)), InputError, r"blocks must have the shape .*got \[2\]"),
        (lambda: masks.block_sparse(bools(2, 2), 0), InputError, "block must .*got 0"),
        (lambda: masks.block_sparse(bools(2, 2), (4, 4, 4)), InputError, r"block must have 2 .*got \(4, 4, 4\)"),
        (lambda: masks.topk_blocks(torch.tensor([[0, -2]])), InputError, "indices must .*got -2"),
        (lambda: masks.topk_blocks(torch.tensor([[0, 4]]), columns=4), InputError, "indices must .*at most 3, got 4"),
        (lambda: masks.topk_blocks(torch.tensor([[0.5]])), KindError, "indices must hold integers, got torch.float32"),
        (lambda: masks.topk_blocks(torch.tensor([0])), InputError, r"indices must .*got \[1\]"),
        (lambda: masks.from_dense(torch.ones(2, 2)), KindError, "mask must be a tensor of bool, got torch.float32"),
        (lambda: masks.from_dense(bools(2, 0)), InputError, r"mask must not be empty, got \[2, 0\]"),
        (lambda: masks.global_local(-1, 1), InputError, "w must .*got -1"),
        (lambda: masks.global_local(1), InputError, "n_global and is_global .*got neither"),
        (lambda: masks.global_local(1, 1, is_global=bools(4)), InputError, "n_global and is_global .*got both"),
        (lambda: masks.global_local(1, is_global=torch.ones(4)), KindError, "is_global must .*got torch.float32"),
        (lambda: masks.longformer(-2, 1), InputError, "window must .*got -2"),
        (lambda: masks.longformer(2, 1, dilation=0), InputError, "dilation must .*got 0"),
        (lambda: masks.longformer(2, 1, dilation=torch.tensor([1, 0])), InputError, "dilation must .*got 0"),
        (lambda: masks.bigbird(0), InputError, "length must .*got 0"),
        (lambda: masks.bigbird(64, n_window=2), InputError, "n_window must be odd.*got 2"),
        (lambda: masks.bigbird(64, n_random=-1), InputError, "n_random must .*got -1"),
    ],
)
def test_bad_arguments_are_named(make, error, says):
    with pytest.raises(error, match=says):
        make()
