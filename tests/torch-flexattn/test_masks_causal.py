"""Causal masks, prefixes, windows, chunks and constants against their formulas, and the pairs that they let through."""

from __future__ import annotations

import pytest
import torch
from torch_flexattn import masks
from torch_flexattn.errors import InputError, KindError
from torch_flexattn.mods import MaskMod
from torch_flexattn.reference import attention


@pytest.mark.parametrize(
    "mask, formula",
    [
        (masks.causal(), lambda b, h, i, j: i >= j),
        (masks.causal("bottom_right", q_len=9, kv_len=13), lambda b, h, i, j: i + 4 >= j),
        (masks.causal("bottom_right", q_len=13, kv_len=9), lambda b, h, i, j: i - 4 >= j),
        (masks.sliding_window(4), lambda b, h, i, j: 0 <= i - j < 4),
        (masks.sliding_window(1), lambda b, h, i, j: i == j),
        (masks.sliding_window(left=3, right=2), lambda b, h, i, j: -2 <= i - j <= 3),
        (masks.sliding_window(left=3), lambda b, h, i, j: i - j <= 3),
        (masks.sliding_window(right=2), lambda b, h, i, j: i - j >= -2),
        (masks.prefix_lm(5), lambda b, h, i, j: j < 5 or i >= j),
        (masks.prefix_lm(0), lambda b, h, i, j: i >= j),
        (masks.dilated(7, 3), lambda b, h, i, j: 0 <= i - j < 7 and (i - j) % 3 == 0),
        (masks.streaming(2, 3), lambda b, h, i, j: i >= j and (i - j < 3 or j < 2)),
        (masks.chunked(4), lambda b, h, i, j: i // 4 == j // 4 and i >= j),
        (masks.always(), lambda b, h, i, j: True),
        (masks.never(), lambda b, h, i, j: False),
    ],
)
def test_mask_is_its_formula(mask, formula, dense, looped):
    assert isinstance(mask, MaskMod)
    assert torch.equal(dense(mask, 13, 13), looped(formula, 13, 13))


@pytest.mark.parametrize(
    "mask, q_len, kv_len, pairs",
    [
        (masks.causal(), 2048, 2048, 2_098_176),
        (masks.causal(), 1000, 1000, 500_500),
        (masks.causal("bottom_right", q_len=1024, kv_len=2048), 1024, 2048, 1_573_376),
        (masks.sliding_window(256), 2048, 2048, 491_648),
        (masks.sliding_window(1000), 4096, 4096, 3_596_500),
        (masks.prefix_lm(300), 2048, 2048, 2_143_026),
        (masks.dilated(256, 4), 1024, 1024, 57_472),
        (masks.streaming(4, 256), 4096, 4096, 1_031_290),
    ],
)
def test_number_of_visible_pairs(mask, q_len, kv_len, pairs, dense):
    assert dense(mask, q_len, kv_len).sum() == pairs


def test_prefix_of_each_sequence(dense, looped):
    lengths = [2, 0, 5]
    expected = looped(lambda b, h, i, j: j < lengths[b] or i >= j, 6, batch=3)
    assert torch.equal(dense(masks.prefix_lm(torch.tensor(lengths)), 6, batch=3), expected)
    assert torch.equal(dense(masks.prefix_lm(lengths), 6, batch=3), expected)
    assert torch.equal(dense(masks.prefix_lm(torch.tensor([2])), 6, batch=3)[2], expected[0])


def test_numbers_are_filled_in_at_run_time():
    assert masks.sliding_window(4).program.key == masks.sliding_window(700).program.key
    assert masks.chunked(4).program.key == masks.chunked(8).program.key
    assert masks.causal("bottom_right", q_len=1, kv_len=2).program.key == masks.causal("bottom_right").program.key


def test_bottom_right_waits_for_the_lengths(dense):
    mask = masks.causal("bottom_right") & masks.sliding_window(3) | masks.never()
    assert "kv_len - q_len" in repr(mask)
    with pytest.raises(InputError, match=r"numbers of queries and keys.*with_lengths"):
        dense(mask, 2, 4)
    with pytest.raises(InputError, match="with_lengths"):
        attention(*[torch.randn(1, 1, 3, 2)] * 3, mask_mod=mask)
    bound = masks.with_lengths(mask, 2, 4)
    expected = masks.causal("bottom_right", q_len=2, kv_len=4) & masks.sliding_window(3)
    assert torch.equal(dense(bound, 2, 4), dense(expected, 2, 4))
    assert bound.program is mask.program
    plain = masks.causal()
    assert masks.with_lengths(plain, 2, 4) is plain


def test_windows_compose(dense):
    assert torch.equal(dense(masks.causal() & masks.sliding_window(left=2), 8), dense(masks.sliding_window(3), 8))
    streaming = masks.sliding_window(3) | (masks.causal() & (lambda b, h, i, j: j < 2))
    assert torch.equal(dense(streaming, 20), dense(masks.streaming(2, 3), 20))
    assert torch.equal(dense(~masks.causal(), 8), ~dense(masks.causal(), 8))
    assert torch.equal(dense(masks.causal() & masks.always(), 8), dense(masks.causal(), 8))
    assert torch.equal(dense(masks.causal() | masks.never(), 8), dense(masks.causal(), 8))


@pytest.mark.parametrize(
    "make, error, says",
    [
        (lambda: masks.causal("left"), InputError, "align must be .*got 'left'"),
        (lambda: masks.causal("bottom_right", q_len=3), InputError, "q_len=3 and kv_len=None"),
        (lambda: masks.causal(q_len=3, kv_len=3), InputError, "q_len=3 and kv_len=3"),
        (lambda: masks.causal("bottom_right", q_len=-1, kv_len=3), InputError, "q_len must .*got -1"),
        (lambda: masks.sliding_window(0), InputError, "w must .*got 0"),
        (lambda: masks.sliding_window(2.5), KindError, "w must be an integer, got 2.5"),
        (lambda: masks.sliding_window(True), KindError, "w must be an integer, got True"),
        (lambda: masks.sliding_window(2**31), InputError, "w must .*got 2147483648"),
        (lambda: masks.sliding_window(3, left=2), InputError, "w=3 with left=2"),
        (lambda: masks.sliding_window(), InputError, "w, left and right .*got None"),
        (lambda: masks.sliding_window(left=-1), InputError, "left must .*got -1"),
        (lambda: masks.sliding_window(right=-2), InputError, "right must .*got -2"),
        (lambda: masks.prefix_lm(-1), InputError, "p must .*got -1"),
        (lambda: masks.prefix_lm("3"), KindError, "p must be an integer, got '3'"),
        (lambda: masks.prefix_lm(torch.tensor([1, -3])), InputError, "p must .*got -3"),
        (lambda: masks.prefix_lm(torch.tensor([[1]])), InputError, r"p must have the shape \[B\], got \[1, 1\]"),
        (lambda: masks.prefix_lm(torch.tensor([1.0])), KindError, "p must hold integers, got torch.float32"),
        (lambda: masks.prefix_lm(torch.tensor([2**40])), InputError, "p must hold integers .*got 1099511627776"),
        (lambda: masks.dilated(0, 1), InputError, "w must .*got 0"),
        (lambda: masks.dilated(4, 0), InputError, "d must .*got 0"),
        (lambda: masks.streaming(-1, 4), InputError, "n_sink must .*got -1"),
        (lambda: masks.streaming(1, 0), InputError, "w must .*got 0"),
        (lambda: masks.chunked(0), InputError, "c must .*got 0"),
    ],
)
def test_bad_arguments_are_named(make, error, says):
    with pytest.raises(error, match=says):
        make()
