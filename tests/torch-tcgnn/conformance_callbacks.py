"""Callbacks of torch-tcgnn, each with a tiny training run, for the conformance suite; see `conformance_cases.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.conformance.cases import CallbackCase

NODES, CHANNELS, CLASSES = 7, 3, 2


def callbacks() -> list[CallbackCase]:
    """Two full-batch steps of a two-layer PyG model on a small graph."""
    from torch_geometric.nn import GATConv, GCNConv
    from torch_tcgnn import lightning as tcl

    class TwoLayers(torch.nn.Module):
        def __init__(self, conv: type) -> None:
            super().__init__()
            self.conv1, self.conv2 = conv(CHANNELS, 4), conv(4, CLASSES)

        def forward(self, x: torch.Tensor, graph: Any) -> torch.Tensor:
            return self.conv2(self.conv1(x, graph).relu(), graph)

    def model(conv: type) -> Callable[[], Any]:
        def make() -> Any:
            torch.manual_seed(1)
            return tcl.NodeClassifier(TwoLayers(conv), num_classes=CLASSES)

        return make

    def dataloader() -> Any:
        rng = torch.Generator().manual_seed(0)
        batch = tcl.NodeBatch(
            x=torch.randn(NODES, CHANNELS, generator=rng),
            graph=torch.randint(NODES, (2, 18), generator=rng),
            y=torch.randint(CLASSES, (NODES,), generator=rng),
            train_mask=torch.ones(NODES, dtype=torch.bool),
        )
        return torch.utils.data.DataLoader([batch, batch], batch_size=None)

    return [
        CallbackCase("TCGNNAccelerator, GCN", tcl.TCGNNAccelerator, model(GCNConv), dataloader),
        CallbackCase(
            "TCGNNAccelerator, GAT, unverified", lambda: tcl.TCGNNAccelerator(verify=False), model(GATConv), dataloader
        ),
        CallbackCase("GraphStatsMonitor", tcl.GraphStatsMonitor, model(GCNConv), dataloader),
    ]
