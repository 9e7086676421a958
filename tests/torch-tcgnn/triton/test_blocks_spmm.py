"""SpMM over bit blocks against the reference. The interpreter's dot is exact: precision itself is a GPU test."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close
from torch_tcgnn import bitblock, reference
from torch_tcgnn.adjacency import compress
from torch_tcgnn.kernels.triton.blocks_spmm import blocks_spmm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# the interpreter computes masked lanes too, with numpy
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")


def sums(adjacency, x, weight, precision, out_dtype=None):
    shape = adjacency.num_rows, *x.shape[1:]
    out = x.new_full(shape, float("nan"), dtype=out_dtype)  # NaN where nothing is written
    blocks_spmm(adjacency, x, weight, precision, out)
    return out


def check(g, adjacency, x, weight, precision="ieee", tolerance=2e-5):
    out = sums(adjacency, x, weight, precision)
    weight = None if weight is None else weight.double()
    want = reference.spmm(g.row, g.col, x.double(), weight, g.num_rows)
    assert out.dtype == x.dtype
    assert_close(out.double(), want, rtol=tolerance, atol=tolerance, equal_nan=True)
    return out


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("features", [1, 7, 17, 33, 64])
def test_every_width_with_duplicate_edges(graphs, random, features, weighted):
    g = graphs["mixed"]
    check(g, g.with_blocks(), random(g.num_cols, features), random(g.num_edges) if weighted else None)


@pytest.mark.parametrize("weighted", [False, True])
def test_without_duplicates(graphs, random, weighted):
    g = graphs["sorted"]
    check(g, g.with_blocks(), random(g.num_cols, 9), random(g.num_edges) if weighted else None)


@pytest.mark.parametrize("weighted", [False, True])
def test_long_windows_are_added_from_parts(graphs, random, weighted):
    g = graphs["hub"]
    adjacency = g.with_blocks(max_blocks=2)
    assert adjacency.blocks.splits.shape[0] > 0
    out = check(g, adjacency, random(g.num_cols, 20), random(g.num_edges) if weighted else None, tolerance=1e-4)
    empty = g.adjacency.rowptr.diff() == 0
    assert torch.equal(out[empty], torch.zeros_like(out[empty]))


def test_rows_in_another_order(graphs, random):
    g = graphs["mixed"]
    order = torch.randperm(g.num_rows, generator=torch.Generator().manual_seed(3)).to(g.row.device)
    for max_blocks in (32, 1):
        check(g, g.with_blocks(max_blocks, row_order=order), random(g.num_cols, 12), random(g.num_edges))


@pytest.mark.parametrize("weighted", [False, True])
def test_float16_accumulates_in_float32(graphs, random, weighted):
    g = graphs["mixed"]
    x = random(g.num_cols, 17, dtype=torch.float16)
    weight = random(g.num_edges, dtype=torch.float16) if weighted else None
    check(g, g.with_blocks(), x, weight, tolerance=4e-3)


@pytest.mark.parametrize("max_blocks", [32, 1])
@pytest.mark.parametrize("features", [7, 64])
def test_float32_sums_of_float16_are_not_rounded(graphs, random, max_blocks, features):
    g = graphs["mixed"]
    x = random(g.num_cols, features, dtype=torch.float16)
    out = sums(g.with_blocks(max_blocks), x, None, "ieee", torch.float32)
    want = reference.spmm(g.row, g.col, x.double(), None, g.num_rows)
    assert_close(out.double(), want, rtol=1e-5, atol=1e-5)


def test_an_edge_listed_thousands_of_times_counts_exactly():
    row = torch.tensor([0, 1, 1, 9]).repeat_interleave(torch.tensor([5001, 2049, 3, 257]))
    col = torch.tensor([2, 0, 2, 2]).repeat_interleave(torch.tensor([5001, 2049, 3, 257]))
    row, col = row.to(DEVICE), col.to(DEVICE)
    rows = compress(row, col, 11, 3)
    blocks = bitblock.build(rows.rowptr, rows.col, 3)
    x = torch.tensor([[1.0], [3.0], [2.0]], dtype=torch.float16, device=DEVICE)
    out = sums(replace(rows, blocks=blocks), x, None, "ieee", torch.float32)
    expected = torch.zeros(11, dtype=torch.float32)
    expected[0], expected[1], expected[9] = 2 * 5001, 2049 + 2 * 3, 2 * 257
    assert out.view(-1).tolist() == expected.tolist()


@pytest.mark.parametrize("precision, bound", [("tf32", 2.0**-11), ("ieee", 2.0**-21)])
def test_tf32_rounds_to_eleven_bits_and_ieee_keeps_two_terms(graphs, precision, bound):
    g = graphs["sorted"]
    x = torch.full((g.num_cols, 1), 1.0 + 2.0**-12 + 2.0**-20, device=g.row.device)
    out = sums(g.with_blocks(), x, None, precision)
    degree = g.adjacency.rowptr.diff().double().unsqueeze(1)
    error = (out.double() / degree.clamp(min=1) - x[0].double() * (degree > 0)).abs().max()
    assert error <= bound
    if precision == "tf32":
        assert error > 2.0**-21  # the rounding is real


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3.4e38])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_what_is_not_finite_reaches_only_its_neighbours(graphs, random, value, weighted, precision):
    g = graphs["mixed"]
    x = random(g.num_cols, 5)
    x[0, 1] = value
    weight = random(g.num_edges).abs() if weighted else None
    out = sums(g.with_blocks(), x, weight, precision)
    want = reference.spmm(g.row, g.col, x, weight, g.num_rows)
    assert torch.equal(out.isfinite(), want.isfinite())
    assert_close(out, want, rtol=2e-3, atol=2e-3, equal_nan=True)


def test_padded_columns_do_not_read_row_zero(graphs, random):
    g = graphs["sorted"]  # its windows are one block with padding
    adjacency = g.with_blocks()
    assert (adjacency.blocks.block_col < 0).any()
    x = random(g.num_cols, 5)
    x[0] = float("nan")
    out = sums(adjacency, x, None, "ieee")
    assert torch.equal(out.isnan().any(1).nonzero().view(-1), g.row[g.col == 0].unique())


def test_a_weight_that_is_not_finite_stays_in_its_row(graphs, random):
    g = graphs["mixed"]
    weight = random(g.num_edges)
    weight[4], weight[11] = float("nan"), float("-inf")
    check(g, g.with_blocks(), random(g.num_cols, 6), weight)
