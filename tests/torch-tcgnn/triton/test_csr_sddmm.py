"""SDDMM against the reference, in input edge order."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close
from torch_tcgnn import reference
from torch_tcgnn.kernels.triton.csr_sddmm import MAX_RESIDENT, csr_sddmm


def check(g, a, b, tolerance=2e-5):
    out = csr_sddmm(g.adjacency, a, b)
    assert out.dtype == a.dtype
    assert_close(out.double(), reference.sddmm(g.row, g.col, a.double(), b.double()), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("features", [1, 7, 17, 33, 64, 200])
def test_every_width(graphs, random, features):
    g = graphs["mixed"]
    check(g, random(g.num_rows, features), random(g.num_cols, features))


def test_rows_wider_than_the_registers_hold(graphs, random):
    g = graphs["sorted"]
    features = MAX_RESIDENT + 9
    check(g, random(g.num_rows, features), random(g.num_cols, features), tolerance=1e-4)


def test_a_row_above_the_split(graphs, random):
    g = graphs["hub"]
    check(g, random(g.num_rows, 8), random(g.num_cols, 8))


@pytest.mark.parametrize("name", ["mixed", "sorted"])
@pytest.mark.parametrize("heads, features", [(2, 5), (3, 1)])
def test_heads(graphs, random, name, heads, features):
    g = graphs[name]
    check(g, random(g.num_rows, heads, features), random(g.num_cols, heads, features))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-13), (torch.float16, 5e-3)])
def test_other_types(graphs, random, dtype, tolerance):
    g = graphs["mixed"]
    check(g, random(g.num_rows, 17, dtype=dtype), random(g.num_cols, 17, dtype=dtype), tolerance)


def test_strided_and_expanded_operands(graphs, random):
    g = graphs["mixed"]
    check(g, random(1, 6).expand(g.num_rows, 6), random(g.num_cols, 20)[:, 4:10])
    check(g, random(6, g.num_rows).t(), random(g.num_cols, 6))
