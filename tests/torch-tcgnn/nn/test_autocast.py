"""Under autocast every layer returns the type that PyG's returns, near PyG's values, and trains as it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_tcgnn.nn as ours

pyg = pytest.importorskip("torch_geometric.nn")

N, E, F, D = 12, 60, 6, 3
RNG = torch.Generator().manual_seed(0)
GRAPH = torch.randint(0, N, (2, E), generator=RNG)
GRAPH[1] += GRAPH[0] == GRAPH[1]  # no loops: of several at a node, PyG keeps any one's weight on a GPU
GRAPH[1] %= N
X, WEIGHT = torch.randn(N, F, generator=RNG), torch.rand(E, generator=RNG)
EDGE, EDGE_F = torch.randn(E, D, generator=RNG), torch.randn(E, F, generator=RNG)
PLACES = [
    ("cpu", torch.bfloat16),
    pytest.param("cuda", torch.float16, marks=pytest.mark.gpu),
    pytest.param("cuda", torch.bfloat16, marks=pytest.mark.gpu),
]
Make = Callable[[Any], torch.nn.Module]


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(F, 5), torch.nn.ReLU(), torch.nn.Linear(5, 4))


def layer(name: str, *args: Any, **options: Any) -> Make:
    return lambda module: getattr(module, name)(*args, **options)


def cases() -> dict[str, tuple[Make, tuple]]:
    """All ten layers; maps that narrow and that widen, since these are applied in either order."""
    found: dict[str, tuple[Make, tuple]] = {
        "GIN": (lambda m: m.GINConv(mlp(), train_eps=True), (X, GRAPH)),
        "GIN, no map": (lambda m: m.GINConv(torch.nn.Identity()), (X, GRAPH)),
        "GINE": (lambda m: m.GINEConv(mlp()), (X, GRAPH, EDGE_F)),
        "GINE, edge map": (lambda m: m.GINEConv(mlp(), edge_dim=D), (X, GRAPH, EDGE)),
        "AGNN": (layer("AGNNConv"), (X, GRAPH)),
        "AGNN, fixed": (layer("AGNNConv", requires_grad=False), (X, GRAPH)),
    }
    for out in (4, 9):
        for bias in (True, False):
            how, which = {"bias": bias}, f"{out}{'' if bias else ', no bias'}"
            found |= {
                f"GCN {which}": (layer("GCNConv", F, out, **how), (X, GRAPH)),
                f"GCN {which}, weights": (layer("GCNConv", F, out, **how), (X, GRAPH, WEIGHT)),
                f"GCN {which}, plain": (layer("GCNConv", F, out, normalize=False, **how), (X, GRAPH)),
                f"GCN {which}, plain, weights": (layer("GCNConv", F, out, normalize=False, **how), (X, GRAPH, WEIGHT)),
                f"SG {which}": (layer("SGConv", F, out, K=2, **how), (X, GRAPH)),
                f"SG {which}, weights": (layer("SGConv", F, out, K=2, **how), (X, GRAPH, WEIGHT)),
                f"SAGE {which}": (layer("SAGEConv", F, out, **how), (X, GRAPH)),
                f"SAGE {which}, max": (layer("SAGEConv", F, out, aggr="max", **how), (X, GRAPH)),
                f"SAGE {which}, unit": (layer("SAGEConv", F, out, normalize=True, **how), (X, GRAPH)),
                f"SAGE {which}, rootless": (layer("SAGEConv", F, out, root_weight=False, **how), (X, GRAPH)),
                f"GraphConv {which}": (layer("GraphConv", F, out, **how), (X, GRAPH)),
                f"GraphConv {which}, weights": (layer("GraphConv", F, out, **how), (X, GRAPH, WEIGHT)),
                f"GraphConv {which}, mean": (layer("GraphConv", F, out, aggr="mean", **how), (X, GRAPH, WEIGHT)),
            }
    for name in ("GATConv", "GATv2Conv"):
        for which, options in {
            "": {}, ", no bias": {"bias": False}, ", residual": {"residual": True},
            ", heads averaged": {"concat": False, "heads": 2, "bias": False},
        }.items():  # fmt: skip
            found[f"{name}{which}"] = (layer(name, F, 4, **options), (X, GRAPH))
            found[f"{name}{which}, edges"] = (layer(name, F, 4, edge_dim=D, **options), (X, GRAPH, EDGE))
    for which, options in {
        "": {}, ", gated": {"beta": True}, ", rootless": {"root_weight": False}, ", heads averaged": {"concat": False},
    }.items():  # fmt: skip
        found[f"Transformer{which}"] = (layer("TransformerConv", F, 4, heads=2, **options), (X, GRAPH))
        edges = layer("TransformerConv", F, 4, heads=2, edge_dim=D, **options)
        found[f"Transformer{which}, edges"] = (edges, (X, GRAPH, EDGE))
    return found


CASES = cases()


def run(module: Any, make: Make, inputs: tuple, device: str, dtype: torch.dtype) -> tuple[torch.Tensor, list]:
    """Output, and gradients of the parameters, of the layer from one seed."""
    torch.manual_seed(1)
    made = make(module).to(device)
    with torch.autocast(device, dtype):
        out = made(*(t.to(device) for t in inputs))
    seed = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out)
    parameters = list(made.parameters())
    return out, list(torch.autograd.grad(out, parameters, seed, allow_unused=True)) if parameters else []


@pytest.mark.parametrize("device, dtype", PLACES)
@pytest.mark.parametrize("features", ["float32", "16-bit"])
@pytest.mark.parametrize("case", CASES)
def test_results_have_pygs_type_and_are_near_its_values(case, features, device, dtype):
    make, (x, *rest) = CASES[case]
    inputs = (x if features == "float32" else x.to(dtype), *rest)
    expected, their_grads = run(pyg, make, inputs, device, dtype)
    out, grads = run(ours, make, inputs, device, dtype)
    assert out.dtype == expected.dtype
    near = 16 * torch.finfo(dtype).eps
    torch.testing.assert_close(out, expected, rtol=near, atol=near)
    for got, want in zip(grads, their_grads, strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            assert got.dtype == want.dtype == torch.float32
            torch.testing.assert_close(got, want, rtol=near, atol=near * max(1.0, want.abs().max().item()))


@pytest.mark.parametrize("device, dtype", PLACES)
def test_sums_under_wide_weights_are_not_rounded(device, dtype):
    """GCN's normalised weights are float32, and so are the sums of the features that its matrix left in 16 bits."""
    torch.manual_seed(1)
    conv = ours.GCNConv(F, 4, bias=False).to(device)
    with torch.autocast(device, dtype):
        out, mapped = conv(X.to(device), GRAPH.to(device)), conv.lin(X.to(device))
    assert (out.dtype, mapped.dtype) == (torch.float32, dtype)
    assert not torch.equal(out, out.to(dtype).float())


@pytest.mark.parametrize("device, dtype", PLACES)
@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "TransformerConv"])
def test_attention_weights_have_pygs_type(name, device, dtype):
    found = []
    for module in (pyg, ours):
        torch.manual_seed(1)
        made = getattr(module, name)(F, 4, heads=2).to(device)
        with torch.autocast(device, dtype):
            _, (_, alpha) = made(X.to(device), GRAPH.to(device), return_attention_weights=True)
        found.append(alpha)
    assert found[0].dtype == found[1].dtype
    torch.testing.assert_close(found[1], found[0], rtol=16 * torch.finfo(dtype).eps, atol=16 * torch.finfo(dtype).eps)


def test_every_layer_has_a_case():
    made = {type(make(ours)).__name__ for make, _ in CASES.values()}
    assert made == {name for name in ours.__all__ if name.endswith("Conv")}
