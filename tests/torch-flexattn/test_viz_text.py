"""Pictures of characters: of positions, of blocks, of several blocks; what is written around them; bad input."""

from __future__ import annotations

import time

import pytest
import torch
from torch_flexattn import BlockMask, InputError, KindError, create_block_mask, mask_mod, masks, scores, viz
from torch_flexattn.viz.cells import pooled
from torch_flexattn.viz.draw import draw


def test_small_mask_shows_every_position():
    expected = """\
mask of 5 queries × 5 keys
   0 1 2 3 4
  ┌──────────┐
0 │██········│
1 │████······│
2 │··████····│
3 │····████··│
4 │······████│
  └──────────┘
█ visible  · hidden
a cell is a position
1 partial, 0 full, 0 hidden of 1 blocks, sparsity 0.00 %
9 of 25 pairs visible (36 %)"""
    assert viz.text(masks.causal() & masks.sliding_window(2), 5) == expected


def test_longer_mask_shows_its_blocks():
    expected = """\
mask of 500 queries × 700 keys
     0   256 512
    ┌────────────┐
  0 │██▒▒········│
128 │██▒▒········│
256 │████▒▒······│
384 │██████▒▒····│
    └────────────┘
█ full  ▒ partial  · hidden
a cell is a block of 128 × 128 positions
4 partial, 7 full, 13 hidden of 24 blocks, sparsity 54.17 %
145,150 of 350,000 pairs visible (41.5 %)"""
    assert sum(max(200, i + 1) for i in range(500)) == 145_150
    assert viz.text(masks.causal() | masks.prefix_lm(200), 500, 700) == expected


def test_the_known_window_of_the_readme():
    lines = viz.text(masks.causal() & masks.sliding_window(256), 2048).splitlines()
    assert lines[3:6] == [
        "    0 │▒▒······························│",
        "  128 │██▒▒····························│",
        "  256 │▒▒██▒▒··························│",
    ]
    assert lines[-2:] == [
        "30 partial, 15 full, 211 hidden of 256 blocks, sparsity 82.42 %",
        "491,648 of 4,194,304 pairs visible (11.7 %)",
    ]


def test_rulers_name_the_first_position_of_a_cell():
    ruler = viz.text(masks.causal(), 2048).splitlines()[1]
    place = len("1,920 │")
    for column in (0, 4, 8, 12):
        label = f"{column * 128:,}"
        assert ruler[place + 2 * column :].startswith(label)


def test_cells_of_several_blocks_count_them():
    mask = masks.prefix_lm(700)
    cells = draw(mask, 5000, 3000, block=(64, 32), most=10)
    kinds = create_block_mask(mask, None, None, 5000, 3000, BLOCK_SIZE=(64, 32)).kinds()[0, 0].long()
    down, right = (step // size for step, size in zip(cells.cell, (64, 32)))
    total = pooled(torch.ones_like(kinds), down, right)
    full, partial = pooled((kinds == 2).long(), down, right), pooled((kinds == 1).long(), down, right)
    assert (cells.rows, cells.columns) == tuple(total.shape)
    expected = [
        "".join(
            "█" if f == t else "·" if f + p == 0 else "░▒▓"[min(max(int((4 * f + 2 * p) / t), 1), 3) - 1]
            for f, p, t in zip(*row)
        )
        for row in zip(full.tolist(), partial.tolist(), total.tolist())
    ]
    assert list(cells.characters) == expected
    assert {"█", "·"} < set("".join(expected))


@pytest.mark.parametrize("most", [1, 3, 7, 40])
def test_no_more_cells_than_asked(most):
    cells = draw(masks.causal(), 3000, 1000, block=32, most=most)
    assert cells.rows <= most
    assert cells.columns <= most
    assert cells.rows * cells.cell[0] >= 3000
    assert (cells.rows - 1) * cells.cell[0] < 3000


def test_batch_and_head_are_chosen():
    reach = torch.tensor([[1, 2], [3, 4]])
    mask = mask_mod(lambda b, h, q, kv: (q >= kv) & (q - kv < reach[b, h]))
    for batch in range(2):
        for head in range(2):
            alone = viz.text(masks.causal() & masks.sliding_window(int(reach[batch, head])), 6)
            shown = viz.text(mask, 6, batch=batch, head=head)
            assert shown.splitlines()[1:] == alone.splitlines()[1:]
            assert shown.splitlines()[0] == f"mask of 6 queries × 6 keys, batch {batch}, head {head}"
            whole = create_block_mask(mask, 2, 2, 6, 6)
            assert viz.text(whole, batch=batch, head=head) == shown


def test_one_mask_serves_every_batch_and_head():
    whole = create_block_mask(masks.causal(), 4, 8, 300, 300)
    assert viz.text(whole, batch=3, head=7) == viz.text(masks.causal(), 300)


def test_masks_that_need_lengths_get_them():
    assert viz.text(masks.causal("bottom_right"), 2, 4).splitlines()[3:5] == ["0 │██████··│", "1 │████████│"]


def test_listed_blocks_are_drawn_as_listed():
    index = torch.tensor([[[[3, 0], [1, 0]]]])
    listed = BlockMask.from_block_indices(index, torch.tensor([[[2, 1]]]), q_len=32, kv_len=64, block=(16, 16))
    drawn = draw(listed, most=4)
    assert drawn.characters == ("█··█", "·█··")
    assert draw(listed, most=64, level="position").characters[15:17] == (
        "█" * 16 + "·" * 32 + "█" * 16,
        "·" * 16 + "█" * 16 + "·" * 32,
    )


def test_everything_and_nothing():
    assert "4 full, 0 hidden" in viz.text(masks.always(), 256)
    assert "0 full, 4 hidden" in viz.text(masks.never(), 256)
    assert "0 of 65,536 pairs" in viz.text(masks.never(), 256)


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (0, 0)])
def test_empty_masks_have_no_picture(sizes):
    lines = viz.text(masks.causal(), *sizes).splitlines()
    assert lines[0] == f"mask of {sizes[0]} queries × {sizes[1]} keys"
    assert "0 of 0 pairs visible" in lines[-1]
    assert "│" not in "".join(lines)


@pytest.mark.parametrize("length", [131_072, 1 << 20])
@pytest.mark.parametrize("name", ["causal", "window", "document"])
def test_long_masks_are_drawn_from_their_runs(name, length):
    mask = {
        "causal": lambda: masks.causal(),
        "window": lambda: masks.causal() & masks.sliding_window(1000),
        "document": lambda: masks.document(torch.arange(0, length + 1, 2048)),
    }[name]()
    start = time.perf_counter()
    lines = viz.text(mask, length).splitlines()
    assert time.perf_counter() - start < 5
    assert len(lines[3:35]) == 32
    assert all(set(line) & set("█▓▒░") for line in lines[3:35])  # a query of these masks sees itself


def test_partial_blocks_that_are_too_many_are_bounded_not_counted():
    every_second = mask_mod(lambda b, h, q, kv: (q + kv) % 2 == 0)
    least, most = viz.text(every_second, 16_384).splitlines()[-1].split(" of ")[0].split(" to ")
    assert (least, most) == ("0", f"{16_384**2:,}")
    with_full = viz.text(every_second | (masks.sliding_window(left=0, right=9000)), 16_384).splitlines()[-1]
    least, most = (int(x.replace(",", "")) for x in with_full.split(" of ")[0].split(" to "))
    index = torch.arange(16_384, dtype=torch.int64)
    exact = int(
        (index + 9001).clamp(max=16_384).sum() - index.sum()
    )  # of the window, and then every second of the rest
    exact += (16_384**2 - exact) // 2
    assert least < exact < most


def test_scores_show_bias_and_mask():
    table = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]])  # for distances from -2 to 2
    lines = viz.text(scores.relative_bias(table), 3, mask=masks.causal()).splitlines()
    assert lines[3:6] == ["0 │░░····│", "1 │▓▓░░··│", "2 │██▓▓░░│"]
    assert lines[7] == "░▒▓█ from 2 to 4  · masked"


def test_scores_are_sampled_at_the_middle_of_a_cell():
    rising = scores.add_mask(torch.arange(100.0).expand(100, 100))
    cells = draw(rising, 100, most=4)
    assert cells.cell == (25, 25)
    assert cells.legend == "░▒▓█ from 12 to 87"
    assert cells.characters == ("░▒▓█",) * 4


def test_scores_that_depend_on_the_score_alone_are_listed():
    last = viz.text(scores.softcap(20), 2).splitlines()[-1]
    assert last.startswith("scores become -100 → -20, -30 → -18.1, ")
    assert "0 → 0," in last
    assert "from 19.28 to 19.28" in viz.text(scores.softcap(20), 2, value=40.0)


def test_values_that_are_not_finite_are_marked():
    bad = torch.tensor([[0.0, float("nan")], [float("inf"), float("-inf")]])
    lines = viz.text(scores.add_mask(bad), 2).splitlines()
    assert lines[3:5] == ["0 │░░??│", "1 │??··│"]
    assert lines[6].endswith("· masked  ? not finite")


def test_bad_reads_of_a_score_are_reported_unless_masked():
    short = scores.add_mask(torch.zeros(4, 2))
    with pytest.raises(IndexError, match="b=0, h=0, q_idx=0, kv_idx=2"):
        viz.text(short, 4)
    assert "masked" in viz.text(short, 4, mask=mask_mod(lambda b, h, q, kv: kv < 2))


@pytest.mark.parametrize(
    "what, options, error, said",
    [
        (masks.causal(), {}, InputError, "q_len"),
        (scores.softcap(2), {}, InputError, "q_len"),
        (masks.causal(), {"q_len": -1}, InputError, "-1"),
        (masks.causal(), {"q_len": 8, "batch": -1}, InputError, "batch .* -1"),
        (masks.causal(), {"q_len": 8, "head": 1.5}, KindError, "head .* 1.5"),
        (masks.causal(), {"q_len": 8, "level": "pixel"}, InputError, "level .*'pixel'"),
        (masks.causal(), {"q_len": 33, "level": "position"}, InputError, "at most 32 .* 33"),
        (masks.causal(), {"q_len": 8, "block": 20}, InputError, "multiples of 16, got 20"),
        (masks.causal(), {"q_len": 8, "cells": 0}, InputError, "at least 1, got 0"),
        (masks.causal(), {"q_len": 8, "mask": masks.causal()}, InputError, "mask"),
        (create_block_mask(masks.causal(), 1, 1, 64, 64), {"q_len": 8}, InputError, "q_len=8"),
        (7, {"q_len": 8}, KindError, "int"),
        (lambda score, b, h, q, kv: score, {"q_len": 8}, KindError, "mask_mod"),
    ],
)
def test_bad_input_names_the_argument(what, options, error, said):
    with pytest.raises(error, match=said):
        viz.text(what, **options)


def test_no_such_batch_of_a_block_mask():
    lengths = torch.tensor([3, 5])
    mask = create_block_mask(mask_mod(lambda b, h, q, kv: kv < lengths[b]), 2, 1, 8, 8)
    with pytest.raises(InputError, match=r"batch must be below 2, .* got 2"):
        viz.text(mask, batch=2)
