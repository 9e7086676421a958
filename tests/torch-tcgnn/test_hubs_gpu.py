"""A node with a million neighbours on a GPU, once as target and once as source, against float64."""

from __future__ import annotations

import pytest
import torch
import torch_tcgnn as tcg
from torch import Tensor
from torch_tcgnn import reference

pytestmark = pytest.mark.gpu
NODES, HUB, WIDTH = 1_000_000, 5, 9


@pytest.fixture(scope="module")
def edges() -> Tensor:
    """``[2, 3·10⁶ + 3]``: into the hub, out of the hub, a ring, and the first edges once more."""
    everyone = torch.arange(NODES, device="cuda")
    hub = torch.full_like(everyone, HUB)
    edge_index = torch.stack([torch.cat([everyone, hub, everyone.roll(1)]), torch.cat([hub, everyone, everyone])])
    return torch.cat([edge_index, edge_index[:, :3]], dim=1)


@pytest.fixture(params=["cuda", "tc", "auto"])
def graph(request, edges) -> tcg.TCGraph:
    return tcg.TCGraph.from_edge_index(edges, NODES, path=request.param)


def randn(*shape: int, seed: int = 0) -> Tensor:
    rng = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=rng, device="cuda").requires_grad_()


def bound(scale: Tensor, terms: Tensor | float) -> Tensor:
    """Of a float32 sum of ``terms`` terms whose absolute values add up to ``scale``."""
    terms = torch.as_tensor(terms, device="cuda").double().view(-1, *[1] * (scale.dim() - 1))
    return (2.0**-20 + 2.0**-22 * terms.sqrt()) * scale + 1e-30


def check_sum(got: Tensor, row: Tensor, message: Tensor) -> None:
    """``got[i] = Σ message`` over the entries of row ``i``."""
    want = reference.segment_sum(row, message, NODES)
    scale = reference.segment_sum(row, message.abs(), NODES)
    terms = torch.bincount(row, minlength=NODES)
    assert ((got.double() - want).abs() <= bound(scale, terms)).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_spmm_forward_and_backward(graph, edges, weighted):
    source, target = edges
    x, weight, upstream = randn(NODES, WIDTH), randn(edges.shape[1], seed=1), randn(NODES, WIDTH, seed=2).detach()
    factor = weight.detach().double().unsqueeze(1) if weighted else 1.0
    out = tcg.spmm(graph, x, weight if weighted else None, precision="ieee")
    check_sum(out.detach(), target, factor * x.detach().double()[source])
    wanted = [x, weight] if weighted else [x]
    grad_x, *grad_weight = torch.autograd.grad(out, wanted, upstream)
    check_sum(grad_x, source, factor * upstream.double()[target])
    for grad in grad_weight:
        products = upstream.double()[target] * x.detach().double()[source]
        assert ((grad.double() - products.sum(1)).abs() <= bound(products.abs().sum(1), WIDTH)).all()


def test_sddmm_forward_and_backward(graph, edges):
    source, target = edges
    a, b, upstream = randn(NODES, WIDTH), randn(NODES, WIDTH, seed=1), randn(edges.shape[1], seed=2).detach()
    out = tcg.sddmm(graph, a, b, precision="ieee")
    products = a.detach().double()[target] * b.detach().double()[source]
    assert ((out.detach().double() - products.sum(1)).abs() <= bound(products.abs().sum(1), WIDTH)).all()
    grad_a, grad_b = torch.autograd.grad(out, [a, b], upstream)
    check_sum(grad_a, target, upstream.double().unsqueeze(1) * b.detach().double()[source])
    check_sum(grad_b, source, upstream.double().unsqueeze(1) * a.detach().double()[target])


def test_edge_softmax_forward_and_backward(graph, edges):
    _, target = edges
    logits, upstream = randn(edges.shape[1], 2), randn(edges.shape[1], 2, seed=1).detach()
    wide = logits.detach().double().requires_grad_()
    out, want = tcg.edge_softmax(graph, logits), reference.edge_softmax(target, wide, NODES)
    torch.testing.assert_close(out.double(), want, rtol=1e-3, atol=1e-12)
    (grad,), (truth,) = torch.autograd.grad(out, logits, upstream), torch.autograd.grad(want, wide, upstream.double())
    hub = target == HUB
    for mine in (hub, ~hub):
        size = truth[mine].square().mean().sqrt().item()
        torch.testing.assert_close(grad[mine].double(), truth[mine], rtol=1e-3, atol=2e-3 * size)


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_extrema_and_their_gradient(graph, edges, reduce):
    source, target = edges
    x = randn(NODES, WIDTH)
    out = tcg.spmm(graph, x, reduce=reduce)
    assert torch.equal(out, reference.spmm_extremum(target, source, x.detach(), None, NODES, reduce == "max"))
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert int(grad.sum()) == NODES * WIDTH


def test_mean_divides_by_a_million(graph, edges):
    out = tcg.spmm(graph, torch.ones(NODES, 4, device="cuda", dtype=torch.float16), reduce="mean")
    assert torch.equal(out, torch.ones_like(out))


def test_two_runs_agree_bit_for_bit(graph, edges):
    x, weight = randn(NODES, WIDTH), randn(edges.shape[1], seed=1)

    def run() -> tuple[Tensor, ...]:
        out = tcg.spmm(graph, x, weight)
        return out, *torch.autograd.grad(out.square().sum(), [x, weight])

    assert all(torch.equal(a, b) for a, b in zip(run(), run()))
