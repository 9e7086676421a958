"""Layers and operators inside autocast on a GPU, which needs no PyG: float32 gradients, near what float32 gives."""

from __future__ import annotations

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn import nn

pytestmark = pytest.mark.gpu

NODES, EDGES, WIDTH, EDGE_DIM = 45, 400, 8, 3
HALVES = [torch.float16, torch.bfloat16]
LAYERS = {
    "GCN": (lambda: nn.GCNConv(WIDTH, 4), "weight"),
    "GIN": (lambda: nn.GINConv(torch.nn.Linear(WIDTH, 3), train_eps=True), None),
    "GINE": (lambda: nn.GINEConv(torch.nn.Linear(WIDTH, 3), edge_dim=EDGE_DIM), "attr"),
    "SAGE": (lambda: nn.SAGEConv(WIDTH, 4, aggr=["mean", "max"]), None),
    "GraphConv": (lambda: nn.GraphConv(WIDTH, 4), "weight"),
    "SG": (lambda: nn.SGConv(WIDTH, 4, K=2), "weight"),
    "GAT": (lambda: nn.GATConv(WIDTH, 4, heads=2, edge_dim=EDGE_DIM), "attr"),
    "GATv2": (lambda: nn.GATv2Conv(WIDTH, 4, heads=2, edge_dim=EDGE_DIM), "attr"),
    "AGNN": (lambda: nn.AGNNConv(), None),
    "Transformer": (lambda: nn.TransformerConv(WIDTH, 4, heads=2, edge_dim=EDGE_DIM), "attr"),
}


def inputs() -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    made = {
        "x": torch.randn(NODES, WIDTH, generator=rng),
        "edge_index": torch.randint(0, NODES, (2, EDGES), generator=rng),
        "weight": torch.rand(EDGES, generator=rng),
        "attr": torch.randn(EDGES, EDGE_DIM, generator=rng),
    }
    return {name: t.to("cuda") for name, t in made.items()}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_train_near_float32(name, dtype):
    make, extra = LAYERS[name]
    torch.manual_seed(0)
    given, layer = inputs(), make().to("cuda")
    results = []
    for enabled in (True, False):
        x = given["x"].clone().requires_grad_()
        with torch.autocast("cuda", dtype, enabled=enabled):
            out = layer(x, given["edge_index"], *([given[extra]] if extra else []))
        layer.zero_grad()
        out.float().square().mean().backward()
        results.append([out.float(), x.grad, *(p.grad for p in layer.parameters())])
        assert all(p.grad.dtype == torch.float32 for p in layer.parameters())
    if name != "AGNN":  # it has no dense product
        assert not torch.equal(results[0][0], results[1][0])
    for got, expected in zip(*results, strict=True):
        assert got.dtype == torch.float32
        assert (got - expected).norm() <= 0.05 * expected.norm() + 1e-3


@pytest.mark.parametrize("dtype", HALVES)
def test_operators_keep_the_types_they_are_given(dtype):
    given = inputs()
    g = tcg.TCGraph.from_edge_index(given["edge_index"], NODES)
    with torch.autocast("cuda", dtype):
        assert tcg.spmm(g, given["x"]).dtype == torch.float32
        half = tcg.spmm(g, given["x"].to(dtype), given["weight"])
        assert half.dtype == dtype
        assert tcg.edge_softmax(g, given["weight"]).dtype == torch.float32


def test_training_with_a_gradient_scaler():
    given = inputs()
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([nn.GCNConv(WIDTH, 16), nn.GATConv(16, 4)]).cuda()
    optimizer, scaler = torch.optim.Adam(layers.parameters(), lr=0.01), torch.amp.GradScaler("cuda")
    labels = (given["x"][:, 0] > 0).long()
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            out = layers[1](layers[0](given["x"], given["edge_index"]).relu(), given["edge_index"])
            loss = torch.nn.functional.cross_entropy(out.float(), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
