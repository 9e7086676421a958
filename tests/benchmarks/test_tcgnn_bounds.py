"""How far sums may lie from float64: what float32 and float16 arithmetic need, and what a wrong answer exceeds."""

import math
from dataclasses import replace

import pytest
import torch

from benchmarks.check import bound_share
from benchmarks.torch_tcgnn import bounds, oracle
from benchmarks.torch_tcgnn.tasks import Task

HUB = 4096


def star(dtype=torch.float32, *, weighted=False):
    """Node 0 hears from all others, node 1 from node 0 alone; sums over the hub cancel to a sixty-fourth of S."""
    random = torch.Generator().manual_seed(0)
    leaves = torch.arange(1, HUB + 1)
    edge_index = torch.stack([torch.cat([leaves, torch.tensor([0])]), torch.tensor([0] * HUB + [1])])
    nodes = HUB + 1
    rowptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(edge_index[1], minlength=nodes).cumsum(0)])
    x, y, grad = (torch.randn(nodes, 8, generator=random).to(dtype) for _ in range(3))
    weight = torch.rand(HUB + 1, generator=random).to(dtype) if weighted else None
    return Task(edge_index, rowptr, nodes, x, y, grad, weight)


def one_by_one(task, dtype=torch.float32):
    """``A · x`` as a loop over edges adds it up, every sum rounded to the dtype."""
    out = torch.zeros(task.num_nodes, task.x.shape[1], dtype=dtype)
    for edge, (source, target) in enumerate(task.edge_index.T.tolist()):
        weight = 1 if task.weight is None else task.weight[edge]
        out[target] += (task.x[source] * weight).to(dtype)
    return out


@pytest.mark.parametrize("weighted", [False, True])
def test_the_bound_is_the_formula_of_degree_and_magnitudes(weighted):
    task = star(weighted=weighted)
    weight = torch.ones(HUB + 1) if task.weight is None else task.weight
    size = (task.x[1:].double().abs() * weight[:HUB, None].double()).sum(0)
    expected = (2**-20 + 2**-22 * math.sqrt(HUB)) * size
    torch.testing.assert_close(bounds.spmm(task)[0], expected)
    single = (2**-20 + 2**-22) * task.x[0].double().abs() * weight[HUB].double()
    torch.testing.assert_close(bounds.spmm(task)[1], single)
    assert bounds.spmm(task)[2:].eq(0).all()


def test_the_gradients_bound_is_that_of_the_transposed_graph():
    task = star()
    out, gradient = bounds.spmm_backward(task)
    torch.testing.assert_close(out, bounds.spmm(task))
    torch.testing.assert_close(gradient[0], (2**-20 + 2**-22) * task.grad[1].double().abs())
    torch.testing.assert_close(gradient[1:], (2**-20 + 2**-22) * task.grad[0].double().abs().expand(HUB, -1))


def test_dot_products_are_bound_by_their_width():
    task = star()
    size = (task.x[0].double() * task.y[1].double()).abs().sum()
    torch.testing.assert_close(bounds.sddmm(task)[0], (2**-20 + 2**-22 * math.sqrt(8)) * size)


def test_float32_added_one_by_one_over_a_hub_is_within_the_bound_and_a_lost_edge_is_not():
    task = star()
    reference, bound = oracle.spmm(task), bounds.spmm(task)
    assert bound_share(one_by_one(task), reference, bound) < 0.5
    lost = reference.clone()
    lost[0] -= task.x[7]
    assert bound_share(lost, reference, bound) > 10


def test_sums_in_float16_break_the_float32_bound_and_keep_their_own():
    task = star(torch.float16)
    reference, half = oracle.spmm(task), one_by_one(task, torch.float16)
    assert bound_share(half, reference, bounds.spmm(task, math="fp16")) > 2
    assert bound_share(half, reference, bounds.spmm_in_fp16(task)) < 1


def test_float32_sums_may_be_rounded_to_float16_once():
    signed = star(torch.float16)
    task = replace(signed, x=signed.x.abs())  # sums do not cancel, so that the rounding of the output outweighs theirs
    reference, rounded = oracle.spmm(task), one_by_one(task).half()
    assert bound_share(rounded, reference, bounds.spmm(task, math="fp16")) < 1
    assert bound_share(rounded, reference, bounds.spmm(task)) > 2


def to_tf32(values):
    """Rounded to the ten stored bits of TF32's mantissa."""
    bits = values.view(torch.int32) + (1 << 12)
    return (bits & ~((1 << 13) - 1)).view(torch.float32)


@pytest.mark.parametrize("weighted", [False, True])
def test_operands_rounded_to_tf32_keep_their_bound_and_break_the_float32_one(weighted):
    task = star(weighted=weighted)
    cut = replace(task, x=to_tf32(task.x), weight=to_tf32(task.weight) if weighted else None)
    out = oracle.spmm(cut)
    assert bound_share(out, oracle.spmm(task), bounds.spmm(task, math="tf32")) < 1
    assert bound_share(out, oracle.spmm(task), bounds.spmm(task)) > 1
