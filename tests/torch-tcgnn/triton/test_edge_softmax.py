"""Softmax over the edges that enter each row, against the reference."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close
from torch_tcgnn import reference
from torch_tcgnn.kernels.triton.edge_softmax import edge_softmax

# the interpreter computes masked lanes too, with numpy
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")


def check(g, logits, tolerance=1e-5):
    out = edge_softmax(g.adjacency, logits)
    assert out.dtype == logits.dtype
    want = reference.edge_softmax(g.row, logits.double(), g.num_rows)
    assert_close(out.double(), want, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", ["mixed", "hub", "sorted"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (8,), (17,)])
def test_one_and_many_heads(graphs, random, name, shape):
    g = graphs[name]
    check(g, random(g.num_edges, *shape) * 5)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-13), (torch.float16, 1e-3)])
def test_other_types(graphs, random, dtype, tolerance):
    g = graphs["mixed"]
    check(g, random(g.num_edges, 2, dtype=dtype), tolerance)


def test_logits_far_from_zero_do_not_overflow(graphs, random):
    g = graphs["mixed"]
    check(g, random(g.num_edges) + 1e4, 1e-4)
    check(g, random(g.num_edges) - 1e4, 1e-4)


@pytest.mark.parametrize("name", ["mixed", "hub"])
@pytest.mark.parametrize("value", [float("-inf"), float("inf"), float("nan")])
def test_infinities_and_nan_stay_in_their_rows(graphs, random, name, value):
    g = graphs[name]
    logits = random(g.num_edges, 2)
    logits[::7, 0] = value
    logits[g.row == g.row[0], 1] = value
    check(g, logits)
