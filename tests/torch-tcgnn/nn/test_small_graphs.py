"""Every layer on the smallest graphs: no nodes, no edges, one node, loops only; finite outputs and gradients."""

import pytest
import torch
from torch_tcgnn import nn

LAYERS = {
    "GCN": lambda: nn.GCNConv(4, 2), "GIN": lambda: nn.GINConv(torch.nn.Linear(4, 2)),
    "GINE": lambda: nn.GINEConv(torch.nn.Linear(4, 2)), "SAGE": lambda: nn.SAGEConv(4, 2, aggr=["mean", "max"]),
    "GAT": lambda: nn.GATConv(4, 2, heads=2), "GATv2": lambda: nn.GATv2Conv(4, 2, heads=2), "AGNN": nn.AGNNConv,
    "Transformer": lambda: nn.TransformerConv(4, 2, heads=2), "GraphConv": lambda: nn.GraphConv(4, 2),
    "SG": lambda: nn.SGConv(4, 2, K=2),
}  # fmt: skip
GRAPHS = {
    "no nodes": (0, torch.empty(2, 0, dtype=torch.int64)),
    "one node": (1, torch.empty(2, 0, dtype=torch.int64)),
    "one loop": (1, torch.zeros(2, 1, dtype=torch.int64)),
    "no edges": (9, torch.empty(2, 0, dtype=torch.int32)),
    "loops only": (9, torch.arange(9).expand(2, -1)),
    "one edge": (9, torch.tensor([[8], [0]])),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("nodes, edges", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_smallest_graphs(make, nodes, edges, device):
    torch.manual_seed(0)
    layer = make().to(device)
    x, edges = torch.randn(nodes, 4, device=device, requires_grad=True), edges.to(device)
    extra = (torch.randn(edges.shape[1], 4, device=device),) if isinstance(layer, nn.GINEConv) else ()
    out = layer(x, edges, *extra)
    assert out.shape[0] == nodes
    out.sum().backward()
    for t in (out, x.grad, *(p.grad for p in layer.parameters() if p.grad is not None)):
        assert t.isfinite().all()
