"""The demo's training: one GCN in four ways, from the same start weights under the same dropout."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, dropout

from .. import nn, reference
from ..accelerate import accelerate
from ..data import GraphData
from ..graph import TCGraph
from ..lightning import (
    Callback,  # pyright: ignore[reportPrivateImportUsage]  (from there, as only that file imports lightning)
    FullGraph,
    NodeClassifier,
    TCGNNAccelerator,
    Trainer,  # pyright: ignore[reportPrivateImportUsage]
)
from ..stopwatch import medians_us

Layer = Callable[[int, int], torch.nn.Module]


@dataclass(frozen=True)
class Variant:
    """A layer to build the model of; `translate` hands it a `TCGraph`, `accelerate` adds the callback."""

    name: str
    layer: Layer
    translate: bool = False
    accelerate: bool = False


@dataclass(frozen=True)
class Run:
    """What came of one training; accuracies in percent, that of the test nodes where validation was best."""

    name: str
    accuracy: float
    val_accuracy: list[float]


class GCN(torch.nn.Module):
    """Two layers, hidden 16, dropout 0.5 between (Kipf & Welling, ICLR 2017)."""

    def __init__(self, layer: Layer, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = layer(num_features, 16), layer(16, num_classes)

    def forward(self, x: Tensor, graph: Any) -> Tensor:
        return self.conv2(dropout(self.conv1(x, graph).relu(), 0.5, self.training), graph)


class GatherGCNConv(torch.nn.Module):
    """The same layer in plain PyTorch: a message an edge, added up by `index_add`; normalised once."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(in_channels, out_channels, bias=False)
        self.bias = torch.nn.Parameter(torch.zeros(out_channels))
        self.edges: tuple[Tensor, Tensor, Tensor] | None = None

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        if self.edges is None:
            loops = torch.arange(x.shape[0], device=x.device).expand(2, -1)
            source, target = torch.cat([edge_index, loops], dim=1)
            scale = torch.bincount(target, minlength=x.shape[0]).to(x.dtype).rsqrt()
            self.edges = (source, target, scale[source] * scale[target])
        source, target, weight = self.edges
        return reference.spmm(target, source, self.lin(x), weight, x.shape[0]) + self.bias


def variants() -> list[Variant]:
    """Ours and plain PyTorch; PyG without and with the accelerator where it is installed."""
    found = [
        Variant("torch_tcgnn, translated", nn.GCNConv, translate=True),
        Variant("plain PyTorch, gather + index_add", GatherGCNConv),
    ]
    if importlib.util.find_spec("torch_geometric") is not None:
        pyg = importlib.import_module("torch_geometric.nn")
        found += [Variant("PyG", pyg.GCNConv), Variant("PyG with TCGNNAccelerator", pyg.GCNConv, accelerate=True)]
    return found


@dataclass(eq=False)
class Watch(Callback):
    """Notes validation accuracies, and keeps the weights of the best."""

    val_accuracy: list[float] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        accuracy = 100 * float(trainer.callback_metrics["val_accuracy"])
        if accuracy > max(self.val_accuracy, default=-1.0):
            self.best = {name: value.detach().clone() for name, value in pl_module.state_dict().items()}
        self.val_accuracy.append(accuracy)


def train(graph: GraphData, variant: Variant, *, epochs: int, seed: int) -> Run:
    """Train by Lightning, without logger, checkpoints and bars: what is left is the training."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    model = _model(graph, variant, seed)
    classifier = NodeClassifier(model, num_classes=graph.num_classes, decayed=["conv1"])
    graph_data = FullGraph(graph, translate=variant.translate)
    watch = Watch()
    trainer = Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        callbacks=[watch, *([TCGNNAccelerator()] if variant.accelerate else [])],
    )  # fmt: skip
    torch.manual_seed(seed)
    with warnings.catch_warnings():  # Lightning's advice on hardware and data workers
        warnings.filterwarnings("ignore", module="lightning")
        trainer.fit(classifier, datamodule=graph_data)
        classifier.load_state_dict(watch.best)
        (tested,) = trainer.test(classifier, datamodule=graph_data, verbose=False)
    return Run(variant.name, 100 * tested["test_accuracy"], watch.val_accuracy)


def step_ms(graph: GraphData, chosen: list[Variant], *, seed: int) -> dict[str, float]:
    """Median milliseconds of a training step (forward, backward, Adam) of each variant, taken in turns."""
    translated, y = TCGraph.from_edge_index(graph.edge_index, graph.num_nodes), torch.as_tensor(graph.y)

    def step(variant: Variant) -> Callable[[], None]:
        model = _model(graph, variant, seed).train()
        if variant.accelerate:
            accelerate(model)
        adam = torch.optim.Adam(model.parameters(), lr=0.01)
        adjacency = translated if variant.translate else graph.edge_index

        def run() -> None:
            adam.zero_grad()
            logits = model(graph.x, adjacency)
            cross_entropy(logits[graph.train_mask], y[graph.train_mask]).backward()
            adam.step()

        return run

    taken = medians_us({variant.name: step(variant) for variant in chosen}, graph.edge_index.device, rounds=20)
    return {name: us / 1e3 for name, us in taken.items()}


def _model(graph: GraphData, variant: Variant, seed: int) -> GCN:
    """The variant's model under the weights that all share."""
    torch.manual_seed(seed)
    start = GCN(nn.GCNConv, graph.num_features, graph.num_classes).state_dict()
    model = GCN(variant.layer, graph.num_features, graph.num_classes)
    model.load_state_dict(start)
    return model
