"""Every layer of torch-tcgnn with inputs, for the conformance suite; `conformance_cases.py` hands them over."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch_tcgnn.nn as tnn
from torch_tcgnn import TCGraph

from tests.conformance.cases import ModuleCase

NODES, CHANNELS, EDGE_CHANNELS = 5, 3, 2
# Node 4 has no edge; node 1 has a loop; edge 0 → 1 is listed twice.
EDGE_INDEX = torch.tensor([[0, 0, 1, 2, 3, 1], [1, 1, 1, 0, 2, 3]])


def _mlp() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(CHANNELS, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def modules() -> list[ModuleCase]:
    """Layers on an edge list; with edge weights or features where the layer takes them; and on a translated graph."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, CHANNELS, generator=rng)
    weight = torch.rand(EDGE_INDEX.shape[1], generator=rng)
    feature = torch.randn(EDGE_INDEX.shape[1], EDGE_CHANNELS, generator=rng)
    same_width = torch.randn(EDGE_INDEX.shape[1], CHANNELS, generator=rng)
    graph = TCGraph.from_edge_index(EDGE_INDEX, num_nodes=NODES)
    plain, weighted, featured = (x, EDGE_INDEX), (x, EDGE_INDEX, weight), (x, EDGE_INDEX, feature)

    def case(layer: str, what: str, make: Callable[[type], torch.nn.Module], inputs: tuple) -> list[ModuleCase]:
        if layer not in tnn.__all__:
            return []
        return [ModuleCase(f"{layer}, {what}", lambda: make(getattr(tnn, layer)), inputs)]

    return [
        *case("GCNConv", "edge weights", lambda conv: conv(CHANNELS, 4), weighted),
        *case("GCNConv", "translated graph", lambda conv: conv(CHANNELS, 4), (x, graph)),
        *case("GINConv", "edge list", lambda conv: conv(_mlp(), train_eps=True), plain),
        *case("GINEConv", "edge features", lambda conv: conv(_mlp()), (x, EDGE_INDEX, same_width)),
        *case("SAGEConv", "edge list", lambda conv: conv(CHANNELS, 4), plain),
        *case("SAGEConv", "maximum", lambda conv: conv(CHANNELS, 4, aggr="max"), plain),
        *case("GraphConv", "edge weights", lambda conv: conv(CHANNELS, 4), weighted),
        *case("SGConv", "two hops", lambda conv: conv(CHANNELS, 4, K=2), weighted),
        *case("GATConv", "two heads", lambda conv: conv(CHANNELS, 4, heads=2), plain),
        *case("GATConv", "edge features", lambda conv: conv(CHANNELS, 4, edge_dim=EDGE_CHANNELS), featured),
        *case("GATv2Conv", "two heads", lambda conv: conv(CHANNELS, 4, heads=2), plain),
        *case("AGNNConv", "edge list", lambda conv: conv(), plain),
        *case("TransformerConv", "two heads", lambda conv: conv(CHANNELS, 4, heads=2), plain),
    ]
