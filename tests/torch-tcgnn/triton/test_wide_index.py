"""Every Triton kernel on int64 pointers, as graphs of 2³¹ entries have them, gives the bits that int32 gives."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch_tcgnn import bitblock
from torch_tcgnn.adjacency import Adjacency, transpose
from torch_tcgnn.kernels import choose
from torch_tcgnn.row_plan import plan_rows

# the interpreter computes masked lanes too, with numpy
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
    pytest.mark.filterwarnings("ignore:torch_tcgnn. kernels in CUDA C.. cannot be compiled"),
]
NAMES = ["mixed", "hub", "sorted"]


@pytest.fixture(autouse=True)
def _triton_only(monkeypatch):
    monkeypatch.setattr(choose.nvrtc, "unavailable", lambda: "NVRTC is hidden by this test")


def widths(adjacency: Adjacency) -> list[Adjacency]:
    """The adjacency with narrow and with wide pointers."""
    assert adjacency.rowptr.dtype == torch.int32
    return [adjacency, replace(adjacency, rowptr=adjacency.rowptr.long(), edge=adjacency.edge.long())]


def check_same_bits(narrow, wide) -> None:
    for a, b in zip(narrow, wide, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_kernels_over_rows(graphs, random, name):
    g = graphs[name]
    x, logits, weight = random(g.num_cols, 9), random(g.num_edges, 2), random(g.num_edges)
    y, headed = random(g.num_rows, 9), random(g.num_cols, 2, 3)
    found = []
    for a in widths(g.adjacency):
        a = replace(a, plan=plan_rows(a.rowptr))
        assert a.plan.short.dtype == a.rowptr.dtype
        found.append([
            choose.spmm(a, x, None, "ieee"), choose.spmm(a, x, weight, "ieee"), choose.spmm(a, headed, logits, "ieee"),
            choose.segment_sum(a, logits), choose.sddmm(a, y, x, "ieee"), choose.edge_softmax(a, logits),
            *choose.spmm_extremum(a, x, weight, True),
        ])  # fmt: skip
    check_same_bits(*found)


@pytest.mark.parametrize("name", NAMES)
def test_kernel_over_blocks(graphs, random, name):
    g = graphs[name]
    x, weight = random(g.num_cols, 9), random(g.num_edges)
    found = []
    for a in widths(g.adjacency):
        a = replace(a, blocks=bitblock.build(a.rowptr, a.col, g.num_cols, max_blocks=2))
        assert a.blocks.block_slot.dtype == a.rowptr.dtype
        assert choose.explain_spmm(a, x, weight).kernel == "triton_blocks"
        found.append([choose.spmm(a, x, None, "ieee"), choose.spmm(a, x, weight, "ieee")])
    check_same_bits(*found)


@pytest.mark.parametrize("name", ["mixed", "sorted"])
@pytest.mark.parametrize("form", ["additive", "gatv2", "dot"])
def test_attention_kernels(graphs, random, form, name):
    g, heads, width = graphs[name], 2, 3
    node, k, m = (heads, width), g.num_cols, g.num_rows
    shapes = {
        "additive": [(k, *node), (k, heads), (m, heads), (g.num_edges, heads)],
        "gatv2": [(k, *node), (m, *node), node, (g.num_edges, *node)],
        "dot": [(m, *node), (k, *node), (k, *node), (g.num_edges, *node)],
    }[form]
    tensors, grad = [random(*shape) for shape in shapes], random(m, *node)
    module = import_module(f"torch_tcgnn.kernels.triton.attention_{form}")
    forward, backward = getattr(module, f"{form}_attention"), getattr(module, f"{form}_attention_backward")
    rest = (0.3, 0.4, torch.tensor([2**62 + 12345], device=grad.device))
    found = []
    for a in widths(g.adjacency):
        out, lse = forward(a, *tensors, *rest)
        transposed = transpose(a, g.num_cols)
        assert transposed.edge.dtype == a.rowptr.dtype
        found.append([out, lse, *backward(a, transposed, *tensors, *rest, out, lse, grad)])
    check_same_bits(*found)
