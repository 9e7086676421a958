"""Maximum and minimum with the attaining entry, against the reference and against a plain search."""

from __future__ import annotations

import pytest
import torch
from torch_tcgnn import reference
from torch_tcgnn.kernels.triton.csr_extremum import csr_extremum


def first_attaining(g, message, out):
    """For each output the first entry, in entry order, whose message is the extremum (NaN counts as one); −1: none."""
    a = g.adjacency
    entries = a.to_entries(message)
    arg = torch.full(out.shape, -1, dtype=torch.int64, device=out.device)
    for i in range(g.num_rows):
        for k in reversed(range(int(a.rowptr[i]), int(a.rowptr[i + 1]))):
            hit = (entries[k] == out[i]) | entries[k].isnan()
            arg[i] = torch.where(hit, k, arg[i])
    return arg


def check(g, x, weight, largest):
    out, arg = csr_extremum(g.adjacency, x, weight, largest)
    weight = None if weight is None else weight.to(x.dtype)
    want = reference.spmm_extremum(g.row, g.col, x, weight, g.num_rows, largest)
    message = x[g.col] if weight is None else x[g.col] * weight.unsqueeze(-1)
    assert out.dtype == x.dtype
    torch.testing.assert_close(out, want, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(arg, first_attaining(g, message, out))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("features", [1, 7, 17, 33, 64])
def test_every_width(graphs, random, features, weighted, largest):
    g = graphs["mixed"]
    check(g, random(g.num_cols, features), random(g.num_edges) if weighted else None, largest)


@pytest.mark.parametrize("largest", [True, False])
def test_a_row_above_the_split_compares_pieces(graphs, random, largest):
    g = graphs["hub"]
    check(g, random(g.num_cols, 5), random(g.num_edges), largest)


@pytest.mark.parametrize("name", ["mixed", "hub"])
def test_the_first_of_equal_entries_wins(graphs, random, name):
    g = graphs[name]
    check(g, random(g.num_cols, 3).round().clamp(-1, 1), None, True)


@pytest.mark.parametrize("name", ["mixed", "hub"])
def test_nan_and_infinities(graphs, random, name):
    g = graphs[name]
    x = random(g.num_cols, 4)
    x[:, 0] = float("-inf")
    x[3, 1] = float("nan")
    x[4, 2] = float("inf")
    x[:, 3] = float("nan")
    check(g, x, None, True)
    check(g, x, None, False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_types(graphs, random, dtype):
    g = graphs["mixed"]
    check(g, random(g.num_cols, 9, dtype=dtype), random(g.num_edges, dtype=dtype), True)


def test_heads(graphs, random):
    g = graphs["mixed"]
    check(g, random(g.num_cols, 3, 5), random(g.num_edges, 3), True)
