"""SpMM and segment sums over compressed rows against the reference."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close
from torch_tcgnn import reference
from torch_tcgnn.kernels.triton.csr_spmm import csr_spmm, segment_sum

TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-5, torch.float16: 2e-3}


def unwritten(adjacency, x, dtype=None):
    """NaN wherever the kernel does not write."""
    return x.new_full((adjacency.num_rows, *x.shape[1:]), float("nan"), dtype=dtype)


def sums(adjacency, x, weight, out_dtype=None):
    out = unwritten(adjacency, x, out_dtype)
    csr_spmm(adjacency, x, weight, out)
    return out


def expected(g, x, weight):
    weight = None if weight is None else weight.double()
    return reference.spmm(g.row, g.col, x.double(), weight, g.num_rows)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("features", [1, 7, 17, 33, 64])
def test_every_width_sums_the_neighbours(graphs, random, features, weighted):
    g = graphs["mixed"]
    x, weight = random(g.num_cols, features), random(g.num_edges) if weighted else None
    assert_close(sums(g.adjacency, x, weight).double(), expected(g, x, weight), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("weighted", [False, True])
def test_other_types_accumulate_in_at_least_float32(graphs, random, dtype, weighted):
    g = graphs["mixed"]
    x = random(g.num_cols, 17, dtype=dtype)
    weight = random(g.num_edges, dtype=dtype) if weighted else None
    out = sums(g.adjacency, x, weight)
    assert out.dtype == dtype
    tolerance = TOLERANCE[dtype]
    assert_close(out.double(), expected(g, x, weight), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["mixed", "hub"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("features", [7, 64])
def test_float32_sums_of_halves_are_not_rounded(graphs, random, name, dtype, features):
    g = graphs[name]
    x = random(g.num_cols, features, dtype=dtype)
    out = sums(g.adjacency, x, None, torch.float32)
    assert_close(out.double(), expected(g, x, None), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("features", [1, 33])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_row_above_the_split_is_added_from_pieces(graphs, random, features, weighted):
    g = graphs["hub"]
    x, weight = random(g.num_cols, features), random(g.num_edges) if weighted else None
    out = sums(g.adjacency, x, weight)
    assert_close(out.double(), expected(g, x, weight), rtol=1e-4, atol=1e-4)
    assert torch.equal(out, sums(g.adjacency, x, weight))


@pytest.mark.parametrize("name", ["mixed", "sorted"])
@pytest.mark.parametrize("heads, features", [(2, 5), (3, 1), (4, 16)])
def test_weights_that_differ_by_head(graphs, random, name, heads, features):
    g = graphs[name]
    x, weight = random(g.num_cols, heads, features), random(g.num_edges, heads)
    assert_close(sums(g.adjacency, x, weight).double(), expected(g, x, weight), rtol=2e-5, atol=2e-5)


def test_more_features_than_one_tile(graphs, random):
    g = graphs["mixed"]
    for features in (129, 200):
        x = random(g.num_cols, features)
        assert_close(sums(g.adjacency, x, None).double(), expected(g, x, None), rtol=2e-5, atol=2e-5)


def test_strided_and_expanded_operands(graphs, random):
    g = graphs["mixed"]
    weight = random(1).expand(g.num_edges)
    for x in (random(g.num_cols, 40)[:, 3:20], random(9, g.num_cols).t(), random(1, 8).expand(g.num_cols, 8)):
        assert_close(sums(g.adjacency, x, weight).double(), expected(g, x, weight), rtol=2e-5, atol=2e-5)


def test_nan_and_inf_reach_only_their_neighbours(graphs, random):
    g = graphs["mixed"]
    x = random(g.num_cols, 7)
    x[0], x[5] = float("nan"), float("inf")
    out = sums(g.adjacency, x, None)
    touched = torch.zeros(g.num_rows, dtype=torch.bool, device=x.device)
    touched[g.row[(g.col == 0) | (g.col == 5)]] = True
    assert touched.any()
    assert not touched.all()
    assert torch.equal(out.isfinite().all(1), ~touched)


def test_rows_without_entries_give_zero(graphs, random):
    g = graphs["mixed"]
    out = sums(g.adjacency, random(g.num_cols, 5), None)
    empty = g.adjacency.rowptr.diff() == 0
    assert empty.any()
    assert torch.equal(out[empty], torch.zeros_like(out[empty]))


@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
@pytest.mark.parametrize("name", ["mixed", "sorted", "hub"])
def test_segment_sum_reads_values_in_input_edge_order(graphs, random, name, shape):
    g = graphs[name]
    values = random(g.num_edges, *shape)
    out = unwritten(g.adjacency, values)
    segment_sum(g.adjacency, values, out)
    assert_close(out.double(), reference.segment_sum(g.row, values.double(), g.num_rows), rtol=1e-4, atol=1e-4)
