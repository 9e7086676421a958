"""Sums over compressed rows, and the normalisation that is built on them: order, derivatives, degenerate sizes."""

from __future__ import annotations

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn.row_sum import row_sum

ROWPTR = torch.tensor([0, 3, 3, 4, 9, 9], dtype=torch.int32)


def values(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("trailing", [(), (2,), (2, 3)])
def test_each_row_adds_its_entries(trailing):
    entries = values(9, *trailing)
    expected = torch.stack([entries[b:e].sum(0) for b, e in zip(ROWPTR.tolist(), ROWPTR.tolist()[1:])])
    torch.testing.assert_close(row_sum(entries, ROWPTR), expected)


@pytest.mark.parametrize("rowptr", [[0], [0, 0, 0]])
def test_without_entries_rows_are_zero(rowptr):
    entries = torch.ones(0, requires_grad=True)
    out = row_sum(entries, torch.tensor(rowptr))
    assert out.tolist() == [0.0] * (len(rowptr) - 1)
    assert torch.autograd.grad(out.sum(), entries)[0].shape == (0,)


@pytest.mark.parametrize("trailing", [(), (2,)])
def test_first_and_second_derivatives_equal_finite_differences(trailing):
    entries = values(9, *trailing).requires_grad_()

    def cubes(entries: torch.Tensor) -> torch.Tensor:
        return row_sum(entries * entries, ROWPTR) * row_sum(entries, ROWPTR)

    assert torch.autograd.gradcheck(cubes, entries)
    assert torch.autograd.gradgradcheck(cubes, entries)


def test_normalisation_is_twice_differentiable_in_the_weights():
    edge_index = torch.tensor([[0, 4, 1, 1, 3, 0, 2, 2], [0, 0, 2, 2, 3, 1, 2, 4]])

    def norm(weight: torch.Tensor) -> torch.Tensor:
        return tcg.TCGraph.from_edge_index(edge_index, 5, weight).gcn_norm().weight

    assert torch.autograd.gradgradcheck(norm, (values(8).abs() + 0.5).requires_grad_())


def test_float16_weights_are_normalised_by_degrees_that_float16_cannot_hold():
    edges, nodes = 5000, 5001
    edge_index = torch.stack([torch.arange(1, nodes), torch.zeros(edges, dtype=torch.int64)])
    weight = torch.ones(edges, dtype=torch.float16)
    got = tcg.TCGraph.from_edge_index(edge_index, nodes, weight).gcn_norm().weight
    want = tcg.TCGraph.from_edge_index(edge_index, nodes, weight.double()).gcn_norm().weight
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.double(), want, rtol=2**-11, atol=0)


def test_the_degree_of_a_hub_does_not_drift():
    edges = 1_000_000
    source = torch.arange(edges) % 1_000
    edge_index, weight = torch.stack([source, torch.zeros_like(source)]), torch.full((edges,), 0.1)
    got = tcg.TCGraph.from_edge_index(edge_index, 1_000, weight).gcn_norm().weight
    want = tcg.TCGraph.from_edge_index(edge_index, 1_000, weight.double()).gcn_norm().weight
    torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", [False, True])
def test_normalisation_on_a_gpu_gives_the_same_bits_again(mode):
    rng = torch.Generator("cuda").manual_seed(0)
    edge_index = torch.randint(0, 3000, (2, 400_000), generator=rng, device="cuda")
    edge_index[1, :200_000] = 7  # a row whose order of addition would show
    weight = torch.rand(400_000, generator=rng, device="cuda").requires_grad_()
    g = tcg.TCGraph.from_edge_index(edge_index, 3000, weight)
    seed = torch.randn(400_000 + 3000, generator=rng, device="cuda")
    torch.use_deterministic_algorithms(mode)
    try:
        runs = []
        for _ in range(5):
            out = g.gcn_norm().weight
            runs.append((out.detach(), *torch.autograd.grad(out, weight, seed[: out.shape[0]])))
    finally:
        torch.use_deterministic_algorithms(False)
    for out, grad in runs[1:]:
        assert torch.equal(out, runs[0][0])
        assert torch.equal(grad, runs[0][1])
