"""Sizes at the edge, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch_flexattn.build import create_block_mask, create_mask
from torch_flexattn.errors import InputError, KindError
from torch_flexattn.mods import score_mod

METHODS = pytest.mark.parametrize("method", ["exact", "analytic", "auto"])


def causal(b, h, q, kv):
    return q >= kv


@METHODS
@pytest.mark.parametrize("q_len,kv_len", [(0, 0), (0, 100), (100, 0)])
def test_no_queries_or_keys(q_len, kv_len, method):
    mask = create_block_mask(causal, None, None, q_len, kv_len, BLOCK_SIZE=32, method=method)
    assert mask.shape == (1, 1, q_len, kv_len)
    assert mask.row_ptr.tolist() == [0] * (1 + -(-q_len // 32))
    assert mask.runs.shape == (0, 2)
    assert mask.transpose_runs()[0].tolist() == [0] * (1 + -(-kv_len // 32))
    assert mask.to_element_mask().shape == (1, 1, q_len, kv_len)
    assert mask.nnz_blocks() == (0, 0)
    assert mask.density == 0
    assert mask.visible_pairs() == 0
    assert str(mask)


@METHODS
def test_no_batches(method):
    mask = create_block_mask(lambda b, h, q, kv: q + b >= kv, 0, 2, 64, 64, BLOCK_SIZE=32, method=method)
    assert mask.shape == (0, 1, 64, 64)
    assert mask.row_ptr.tolist() == [0]
    assert create_mask(causal, 0, 2, 5, 6).shape == (0, 2, 5, 6)


@METHODS
def test_rows_that_see_nothing(method):
    mask = create_block_mask(
        lambda b, h, q, kv: (q // 64 == 1) & (kv > 100), None, None, 300, 300, BLOCK_SIZE=64, method=method
    )
    assert mask.row_ptr.tolist() == [0, 0, 2, 2, 2, 2]
    assert mask.runs.tolist() == [[1, 4], [2, 11]]
    assert mask.row_cost().tolist() == pytest.approx([0, 4.15, 0, 0, 0])


@METHODS
def test_nothing_and_everything(method):
    nothing = create_block_mask(lambda b, h, q, kv: q < 0, None, None, 200, 100, method=method)
    assert nothing.runs.shape == (0, 2)
    everything = create_block_mask(lambda b, h, q, kv: kv >= 0, None, None, 200, 100, method=method)
    assert everything.runs.tolist() == [[0, 3], [0, 3]]


@METHODS
def test_many_batches(method):
    lengths = torch.arange(5000) % 30
    mask = create_block_mask(lambda b, h, q, kv: kv < lengths[b], 5000, 1, 1, 29, BLOCK_SIZE=16, method=method)
    expected = [[] if n == 0 else [[0, 2]] if n < 16 else [[0, 3]] if n == 16 else [[0, 3], [1, 4]] for n in range(29)]
    runs = [run for n in lengths.tolist() for run in (expected[n] if n < 29 else [[0, 5]])]
    assert mask.runs.tolist() == runs


def test_one_block_larger_than_a_step(monkeypatch):
    from torch_flexattn.analysis import exact_tiles

    monkeypatch.setitem(exact_tiles.AT_A_TIME, "cpu", 4096)  # a row or two of a block
    mask = create_block_mask(causal, None, None, 3000, 2000, BLOCK_SIZE=1024, method="exact")
    assert mask.kinds().tolist() == [[[[1, 0], [2, 1], [2, 2]]]]
    assert mask.visible_pairs() == 2000 * 2001 // 2 + 1000 * 2000


def test_numbers_are_found_at_run_time():
    programs = set()
    for window in (3, 500, 100_000):
        mask = create_block_mask(lambda b, h, q, kv, w=window: (q >= kv) & (q - kv < w), None, None, 2000, 2000)
        assert mask.visible_pairs() == sum(min(i + 1, window) for i in range(2000))
        programs.add(mask.mod.program)
    assert len(programs) == 1


@pytest.mark.parametrize("name", ["B", "H", "Q_LEN", "KV_LEN"])
def test_sizes_that_are_none(name):
    sizes = {"B": 1, "H": 1, "Q_LEN": 64, "KV_LEN": 64}
    with pytest.raises(InputError, match=f"{name} must be from 0 .* got -1"):
        create_block_mask(causal, **{**sizes, name: -1})
    with pytest.raises(InputError, match=rf"{name} must be from 0 to 2\*\*30, got {2**30 + 1}"):
        create_block_mask(causal, **{**sizes, name: 2**30 + 1})
    with pytest.raises(KindError, match=f"{name} must be an integer, got 2.5"):
        create_block_mask(causal, **{**sizes, name: 2.5})


@pytest.mark.parametrize(
    "block", [0, 8, 100, -16, (16, 24), (128.0, 128), 2**31, 2**16 + 16, "x", (16,), (16, 16, 16), 1.5, 16.0]
)
def test_block_sizes_that_are_none(block):
    with pytest.raises(InputError, match="BLOCK_SIZE must be multiples of 16, got"):
        create_block_mask(causal, None, None, 64, 64, BLOCK_SIZE=block)


def test_unknown_method():
    with pytest.raises(InputError, match="method must be one of auto, exact, analytic; got 'fast'"):
        create_block_mask(causal, None, None, 64, 64, method="fast")


def test_score_modification_in_place_of_a_mask():
    with pytest.raises(KindError, match="swapped"):
        create_block_mask(score_mod(lambda s, b, h, q, kv: s), None, None, 64, 64)
    with pytest.raises(KindError, match="must be a function, got int"):
        create_block_mask(3, None, None, 64, 64)


def test_captured_tensor_on_another_device():
    table = torch.zeros(64, dtype=torch.bool)
    with pytest.raises(InputError, match=r"captures a tensor .*\(64,\)\) on cpu, but the mask is on meta"):
        create_block_mask(lambda b, h, q, kv: table[q], None, None, 64, 64, device="meta")


@METHODS
def test_visible_position_reads_out_of_range(method):
    short, late = torch.arange(50), torch.arange(100)
    with pytest.raises(
        IndexError, match=r"\(50,\)\) out of range at the visible position b=0, h=0, q_idx=50, kv_idx=0"
    ):
        create_block_mask(lambda b, h, q, kv: short[q] <= kv, None, None, 64, 64, BLOCK_SIZE=16, method=method)
    with pytest.raises(IndexError, match="h=1, q_idx=3, kv_idx=63"):
        create_block_mask(
            lambda b, h, q, kv: (late[q * 30 + kv * h - 53] >= 0) & (kv == 63) & (q < 4),
            None,
            2,
            64,
            64,
            BLOCK_SIZE=16,
            method=method,
        )


@METHODS
def test_hidden_positions_may_read_out_of_range(method):
    short = torch.arange(50)
    mask = create_block_mask(
        lambda b, h, q, kv: (q < 50) & (short[q] >= kv), None, None, 64, 64, BLOCK_SIZE=16, method=method
    )
    assert mask.visible_pairs() == 50 * 51 // 2
    back = create_block_mask(lambda b, h, q, kv: short[q - 64] > kv, None, None, 64, 64, method=method, check=False)
    assert back.visible_pairs() == sum(range(50))  # q - 64 ≥ -50 counts from the end; below that it is out of range: 0


@METHODS
def test_without_a_check_out_of_range_counts_as_0(method):
    short = torch.arange(1, 51)
    mask = create_block_mask(
        lambda b, h, q, kv: short[q] <= kv, None, None, 64, 64, BLOCK_SIZE=16, method=method, check=False
    )
    assert mask.visible_pairs() == sum(63 - q for q in range(50)) + 14 * 64
