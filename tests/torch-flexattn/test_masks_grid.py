"""Neighbourhoods, tiles and axes of grids against the definition, query by query."""

from __future__ import annotations

import itertools
import pickle

import pytest
import torch
from torch_flexattn import MaskMod, create_block_mask, create_mask, flex_attention, masks
from torch_flexattn.errors import InputError, KindError


def window_of(x, size, kernel, dilation=1, stride=1, causal=False):
    """The places that place ``x`` of an axis sees, listed one by one."""
    members = list(range(x % dilation, size, dilation))
    place = members.index(x)
    group = place - place % stride
    if causal:
        leader = min(group + stride - 1, len(members) - 1)
        return {members[p] for p in range(max(0, leader - kernel + 1), place + 1)}
    leader = min(group + stride // 2, len(members) - 1)
    centre = max(leader, kernel // 2)
    centre = min(centre, len(members) - 1 - (kernel - 1) // 2)
    seen = {members[p] for p in range(centre - kernel // 2, centre + (kernel - 1) // 2 + 1)}
    assert len(seen) == kernel
    return seen


def grid_mask(shape, kernel, dilation, stride, causal):
    cells = list(itertools.product(*(range(n) for n in shape)))
    seen = torch.zeros(len(cells), len(cells), dtype=torch.bool)
    for i, query in enumerate(cells):
        windows = [window_of(*axis) for axis in zip(query, shape, kernel, dilation, stride, causal)]
        for j, key in enumerate(cells):
            seen[i, j] = all(y in window for y, window in zip(key, windows))
    return seen


@pytest.mark.parametrize(
    "size, kernel, dilation, stride, causal",
    [
        (12, 7, 1, 1, False),
        (12, 6, 1, 1, False),
        (7, 7, 1, 1, False),
        (9, 1, 1, 1, False),
        (13, 3, 2, 1, False),
        (14, 4, 3, 1, False),
        (12, 5, 1, 3, False),
        (13, 4, 1, 4, False),
        (17, 4, 3, 2, False),
        (12, 4, 1, 1, True),
        (13, 3, 2, 1, True),
        (13, 5, 1, 3, True),
        (17, 4, 3, 2, True),
    ],
)
def test_neighbourhood_on_a_line(size, kernel, dilation, stride, causal, dense):
    mask = masks.natten1d(size, kernel, dilation, stride, causal)
    assert torch.equal(dense(mask, size), grid_mask((size,), (kernel,), (dilation,), (stride,), (causal,)))


@pytest.mark.parametrize(
    "shape, kernel, dilation, stride, causal",
    [
        ((4, 7), (3, 5), (1, 1), (1, 1), (False, False)),
        ((7, 4), (4, 3), (1, 1), (2, 1), (False, True)),
        ((6, 9), (2, 3), (3, 2), (1, 2), (True, False)),
        ((3, 4, 5), (3, 2, 3), (1, 2, 1), (1, 1, 3), (True, False, False)),
        ((4, 3, 4), (2, 3, 4), (2, 1, 1), (2, 2, 1), (False, False, True)),
    ],
)
def test_neighbourhood_on_a_grid(shape, kernel, dilation, stride, causal, dense):
    factory = masks.natten2d if len(shape) == 2 else masks.natten3d
    mask = factory(shape, kernel, dilation, stride, causal)
    tokens = torch.Size(shape).numel()
    assert torch.equal(dense(mask, tokens), grid_mask(shape, kernel, dilation, stride, causal))


def test_one_number_stands_for_all_axes(dense):
    one = masks.natten3d((3, 4, 5), 3, 1, 2, False)
    three = masks.natten3d((3, 4, 5), (3, 3, 3), (1, 1, 1), (2, 2, 2), (False, False, False))
    assert torch.equal(dense(one, 60), dense(three, 60))


def test_windows_stay_inside(dense):
    seen = dense(masks.natten1d(12, 7), 12)
    windows = [(row.nonzero()[0].item(), row.nonzero()[-1].item(), int(row.sum())) for row in seen]
    assert windows == [(0, 6, 7)] * 4 + [(1, 7, 7), (2, 8, 7), (3, 9, 7), (4, 10, 7)] + [(5, 11, 7)] * 4


def test_number_of_visible_pairs(dense):
    assert dense(masks.natten2d((32, 32), 7), 1024).sum() == 50_176
    assert dense(masks.natten2d((16, 48), (5, 9)), 768).sum() == 34_560


def test_width_divides_whatever_the_aspect_ratio(dense):
    wide = dense(masks.natten2d((2, 6), (1, 3)), 12)
    assert wide[7].nonzero().flatten().tolist() == [6, 7, 8]
    tall = dense(masks.natten2d((6, 2), (3, 1)), 12)
    assert tall[5].nonzero().flatten().tolist() == [3, 5, 7]


def test_sizes_are_filled_in_at_run_time():
    assert masks.natten2d((5, 7), 3).program.key == masks.natten2d((9, 6), (3, 5)).program.key


@pytest.mark.parametrize(
    "shape, tile, kernel", [((6, 4), (2, 2), (6, 2)), ((4, 6, 6), (2, 3, 2), (4, 3, 6)), ((12,), (3,), (9,))]
)
def test_tiles_see_a_window_of_tiles(shape, tile, kernel, dense):
    order = masks.tile_order(shape, tile)
    cells = list(itertools.product(*(range(n) for n in shape)))
    counts = [n // t for n, t in zip(shape, tile)]
    expected = torch.zeros(len(cells), len(cells), dtype=torch.bool)
    for i, a in enumerate(order.tolist()):
        for j, b in enumerate(order.tolist()):
            expected[i, j] = all(
                y // t in window_of(x // t, n, k // t)
                for x, y, t, n, k in zip(cells[a], cells[b], tile, counts, kernel)
            )
    assert torch.equal(dense(masks.sliding_tile(shape, tile, kernel), len(cells)), expected)


def test_tile_order_puts_tiles_together():
    order = masks.tile_order((4, 6), (2, 3))
    assert sorted(order.tolist()) == list(range(24))
    assert order[:6].tolist() == [0, 1, 2, 6, 7, 8]
    assert order.argsort()[order].tolist() == list(range(24))
    assert masks.tile_order(6, 3).tolist() == list(range(6))


def test_sliding_tiles_are_a_neighbourhood_with_strides(dense):
    shape, order = (6, 8), masks.tile_order((6, 8), (2, 2))
    tiles = dense(masks.sliding_tile(shape, 2, 6), 48)
    rows = torch.empty_like(tiles)
    rows[order[:, None], order] = tiles
    for y, x in itertools.product(range(6), range(8)):
        seen = rows[y * 8 + x].view(shape).nonzero()
        assert (seen.max(0).values - seen.min(0).values).tolist() == [5, 5]
        assert len(seen) == 36


@pytest.mark.parametrize("shape, dim", [((3, 4), 0), ((3, 4), 1), ((2, 3, 4), 1), ((2, 3, 4), -1), ((2, 3, 4), 0)])
def test_axis_sees_its_line(shape, dim, dense):
    cells = list(itertools.product(*(range(n) for n in shape)))
    axis = dim % len(shape)
    expected = torch.tensor([[a[:axis] + a[axis + 1 :] == b[:axis] + b[axis + 1 :] for b in cells] for a in cells])
    assert torch.equal(dense(masks.axial(shape, dim), len(cells)), expected)


@pytest.mark.parametrize(
    "make, error, says",
    [
        (lambda: masks.natten1d(4, 5), InputError, "kernel .* shape, got 5 · 1 > 4"),
        (lambda: masks.natten1d(8, 3, 3), InputError, "dilation .* shape, got 3 · 3 > 8"),
        (lambda: masks.natten1d(8, 3, 1, 4), InputError, "stride must not exceed kernel, got 4 > 3"),
        (lambda: masks.natten2d((8, 0), 3), InputError, r"shape\[1\] must .*got 0"),
        (lambda: masks.natten2d((8,), 3), InputError, r"shape must have 2 numbers.*got \(8,\)"),
        (lambda: masks.natten2d((8, 8), (3, 3, 3)), InputError, r"kernel must have 2 numbers.*got \(3, 3, 3\)"),
        (lambda: masks.natten2d((8, 8), (3, 0)), InputError, r"kernel\[1\] must .*got 0"),
        (lambda: masks.natten2d((8, 8), 2.5), KindError, "kernel must be an integer, got 2.5"),
        (lambda: masks.natten2d((8, 8), 3, is_causal=(True,)), InputError, r"is_causal must .*got \(True,\)"),
        (lambda: masks.natten3d((8, 8, 8), 3, is_causal=1), InputError, "is_causal must .*got 1"),
        (lambda: masks.sliding_tile((6, 6), 4, 4), InputError, r"tile must divide shape, got \(4, 4\) and \(6, 6\)"),
        (lambda: masks.sliding_tile((6, 6), 2, 3), InputError, "kernel must be a multiple of tile.*got 3, 2 and 6"),
        (lambda: masks.sliding_tile((6, 6), 2, 8), InputError, "kernel must .* not exceed shape, got 8, 2 and 6"),
        (lambda: masks.tile_order((6, 6), (4, 3)), InputError, r"tile must divide shape, got \(4, 3\)"),
        (lambda: masks.axial((2, 3), 2), InputError, r"dim must be an axis of shape \(2, 3\), got 2"),
        (lambda: masks.axial((2, 0), 0), InputError, r"shape\[1\] must .*got 0"),
    ],
)
def test_bad_arguments_are_named(make, error, says):
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize("mask", [masks.natten2d((4, 4), 3), masks.sliding_tile((4, 4), (2, 2), (2, 2))])
def test_a_grid_has_no_place_for_more_tokens(mask: MaskMod) -> None:
    q = torch.randn(1, 1, 17, 4)
    combined = [mask, mask & masks.causal(), masks.causal() & mask, pickle.loads(pickle.dumps(mask))]
    calls = [
        lambda m: flex_attention(q, q, q, mask_mod=m),
        lambda m: flex_attention(q, q, q, block_mask=masks.causal(), mask_mod=m),
        lambda m: flex_attention(q, q, q, mask_mod=m, backend="reference"),
        lambda m: create_block_mask(m, None, None, 4, 17),
        lambda m: create_mask(m, None, None, 17, 16),
    ]
    for call in calls:
        for given in combined:
            with pytest.raises(InputError, match="mask_mod is that of a grid of 16 tokens, got"):
                call(given)


def test_tokens_beside_a_grid_are_what_the_user_says() -> None:
    q = torch.randn(1, 1, 17, 4)
    grid = masks.natten2d((4, 4), 3)
    whole = create_mask(grid | (lambda b, h, i, j: (i == 16) | (j == 16)), None, None, 17, 17)[0, 0]
    assert whole[16].all()
    assert whole[:, 16].all()
    assert torch.equal(whole[:16, :16], create_mask(grid, None, None, 16, 16)[0, 0])
    assert flex_attention(q[:, :, :9], q, q, mask_mod=grid | masks.causal()).shape == (1, 1, 9, 4)
    assert flex_attention(q[:, :, :9], q[:, :, :9], q[:, :, :9], mask_mod=grid).shape == (1, 1, 9, 4)  # rows so far
