"""Batches of features `[..., N, F]` over one graph (PyG's static graphs): outputs and gradients equal PyG's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_tcgnn.nn as ours
from torch import Tensor

pyg = pytest.importorskip("torch_geometric.nn")

N, M, E, F, D = 12, 7, 60, 6, 3
RNG = torch.Generator().manual_seed(0)
GRAPH = torch.randint(0, N, (2, E), generator=RNG)
GRAPH = torch.cat([GRAPH[:, GRAPH[0] != GRAPH[1]], torch.tensor([[3], [3]])], dim=1)  # one loop
BIPARTITE = torch.stack([torch.randint(0, N, (E,), generator=RNG), torch.randint(0, M - 1, (E,), generator=RNG)])
WEIGHT, WEIGHT_B = torch.rand(GRAPH.shape[1], generator=RNG), torch.rand(E, generator=RNG)
EDGE = torch.randn(GRAPH.shape[1], D, generator=RNG)


def features(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def mlp(size: int = F) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(size, 5), torch.nn.ReLU(), torch.nn.Linear(5, 4))


XB, XT = features(2, N, F), features(2, M, 5)
CASES: dict[str, tuple[Callable[[Any], torch.nn.Module], tuple]] = {
    "GCN, narrowing": (lambda m: m.GCNConv(F, 4), (XB, GRAPH)),
    "GCN, widening": (lambda m: m.GCNConv(F, 9), (XB, GRAPH, WEIGHT)),
    "GCN, not normalised": (lambda m: m.GCNConv(F, 4, normalize=False), (XB, GRAPH, WEIGHT)),
    "GCN, maximum": (lambda m: m.GCNConv(F, 4, aggr="max"), (XB, GRAPH, WEIGHT)),
    "SAGE": (lambda m: m.SAGEConv(F, 9), (XB, GRAPH)),
    "SAGE, list": (lambda m: m.SAGEConv(F, 4, aggr=["mean", "max", "add"], project=True), (XB, GRAPH)),
    "SAGE, pair": (lambda m: m.SAGEConv((F, 5), 4), ((XB, XT), BIPARTITE)),
    "GraphConv, narrowing": (lambda m: m.GraphConv(F, 4), (XB, GRAPH, WEIGHT)),
    "GraphConv, mean": (lambda m: m.GraphConv(F, 9, aggr="mean"), (XB, GRAPH, WEIGHT)),
    "GraphConv, pair": (lambda m: m.GraphConv((F, 5), 4), ((XB, XT), BIPARTITE, WEIGHT_B)),
    "GIN": (lambda m: m.GINConv(mlp(), eps=0.3, train_eps=True), (XB, GRAPH)),
    "GIN, sources only": (lambda m: m.GINConv(mlp()), ((XB, None), BIPARTITE, (N, M))),
    "GINE": (lambda m: m.GINEConv(mlp(), edge_dim=D), (XB, GRAPH, EDGE)),
    "SG, narrowing": (lambda m: m.SGConv(F, 4, K=2), (XB, GRAPH, WEIGHT)),
    "SG, widening": (lambda m: m.SGConv(F, 9, K=3), (XB, GRAPH)),
}


def leaves(inputs: Any) -> Any:
    """The same inputs, floating point tensors as leaves that want a gradient."""
    if isinstance(inputs, tuple):
        return tuple(map(leaves, inputs))
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        return inputs.clone().requires_grad_()
    return inputs


def floating(inputs: Any) -> list[Tensor]:
    if isinstance(inputs, tuple):
        return [t for part in inputs for t in floating(part)]
    return [inputs] if isinstance(inputs, Tensor) and inputs.is_floating_point() else []


def run(module: Any, make: Callable[[Any], torch.nn.Module], inputs: tuple) -> tuple[Tensor, tuple]:
    torch.manual_seed(1)
    layer, inputs = make(module), leaves(inputs)
    out = layer(*inputs)
    seed = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    return out, torch.autograd.grad(out, [*floating(inputs), *layer.parameters()], seed)


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_equal_pygs(case):
    expected, their_grads = run(pyg, *CASES[case])
    out, grads = run(ours, *CASES[case])
    assert out.dim() == 3
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    for got, want in zip(grads, their_grads, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", [name for name, (_, inputs) in CASES.items() if inputs[0] is XB])
def test_any_leading_dimensions_equal_the_members_one_by_one(case):
    make, (_, *rest) = CASES[case]
    torch.manual_seed(1)
    layer, x = make(ours), features(2, 3, N, F)
    members = [layer(member, *rest) for member in x.view(6, N, F)]
    torch.testing.assert_close(layer(x, *rest), torch.stack(members).view(2, 3, N, -1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "TransformerConv", "AGNNConv"])
def test_layers_whose_pyg_twin_takes_no_batches_say_so(name):
    layer = ours.AGNNConv() if name == "AGNNConv" else getattr(ours, name)(F, 4)
    with pytest.raises(ValueError, match=r"\[nodes, channels\], got \(2, 12, 6\)"):
        layer(XB, GRAPH)
