"""Test accuracy of GCN on citation graphs, trained on tensor cores in each of their precisions.

Model, hyper-parameters, first weights and the tested epoch are those of `examples/citation.py`, which `accuracy` trains
by Lightning on the CPU. Sixty trainings in short steps go by a plain loop here, without Lightning's work between the
steps; on a CPU both ways give the same accuracy.

Graphs are translated with ``path="tc"``: the cost model predicts that float32 features on graphs as sparse as these are
summed faster by CUDA cores, which know no TF32. The precisions are set as a user sets them:

- ieee: nothing is rounded below float32;
- tf32: PyTorch's switch for dense products, and ``precision="tf32"`` of the layers;
- bf16: ``torch.autocast``, as under Lightning's ``precision="bf16-mixed"``. Dense products and the sums over edges take
  bfloat16, edge weights included; the gradients of those sums arrive in float32 and are summed in ieee.

Seed by seed all three start from the same weights and drop the same entries. Targets are those of `accuracy`.
"""

from functools import cache, partial
from types import SimpleNamespace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_tcgnn import TCGraph, data, nn

from benchmarks.case import Fact
from benchmarks.tf32 import tf32
from benchmarks.torch_tcgnn.accuracy import SEEDS, TARGETS, experiments

Precision = Literal["ieee", "tf32", "bf16"]
GRAPHS = ("cora", "citeseer")
NOTES: dict[Precision, str] = {
    "ieee": "float32 throughout",
    "tf32": "TF32 in dense products, in sums over edges and in their gradients",
    "bf16": "autocast: dense products and sums over edges of bfloat16; gradients of those sums in float32",
}

__all__ = ["GRAPHS", "NOTES", "Precision", "facts", "train"]


def train(
    graph: data.GraphData,
    precision: Precision,
    device: torch.device,
    *,
    seed: int,
    path: Literal["auto", "tc", "cuda"] = "tc",
    epochs: int | None = None,
) -> float:
    """Percent of the test nodes that GCN tells right, at the first epoch of the best validation accuracy."""
    torch.manual_seed(seed)
    layers = SimpleNamespace(GCNConv=partial(nn.GCNConv, precision="tf32" if precision == "tf32" else "ieee"))
    classifier = experiments().untrained("gcn", graph, layers).to(device)
    optimizer = classifier.configure_optimizers()
    translated = TCGraph.from_edge_index(graph.edge_index.to(device), graph.num_nodes, path=path)
    x, y = graph.x.to(device), graph.y.to(device)
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    trained, validated, tested = (mask.nonzero().squeeze(1).to(device) for mask in masks)

    def logits() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            return classifier(x, translated)

    right = []
    with tf32(precision == "tf32"):
        for _ in range(epochs or classifier.model.recipe.epochs):
            classifier.train()
            optimizer.zero_grad()
            cross_entropy(logits()[trained], y[trained]).backward()
            optimizer.step()
            classifier.eval()
            with torch.no_grad():
                told = logits().argmax(1) == y
            right.append(torch.stack([told[validated].sum(), told[tested].sum()]))  # no .item(): it would wait
    best = max(torch.stack(right).tolist(), key=lambda counts: counts[0])
    return 100 * best[1] / tested.shape[0]


@cache
def _accuracy(graph: str, precision: Precision, device: torch.device, seed: int) -> float:
    return train(experiments().load(graph), precision, device, seed=seed)


def _measured(graph: str, precision: Precision, device: torch.device, seed: int) -> float:
    return _accuracy(graph, precision, device, seed)


def _lead(graph: str, precision: Precision, device: torch.device, seed: int) -> float:
    """Points more than in ieee; both trainings are known by now."""
    return _accuracy(graph, precision, device, seed) - _accuracy(graph, "ieee", device, seed)


def _facts(graph: str, precision: Precision) -> list[Fact]:
    target, published = TARGETS["gcn", graph]
    declare = partial(Fact, seeds=SEEDS, tags=("accuracy", "gcn", graph, precision, "gpu"), devices=("cuda",))
    name = f"accuracy/gcn/{graph}/{precision}"
    accuracy = declare(
        name=name,
        measure=partial(_measured, graph, precision),
        unit="%",
        target=target,
        note=f'{published}; all sums on tensor cores (path="tc"); {NOTES[precision]}',
    )
    if precision == "ieee":
        return [accuracy]
    return [
        accuracy,
        declare(
            name=f"{name}-minus-ieee", measure=partial(_lead, graph, precision), unit="points", note="seed by seed"
        ),
    ]


def facts() -> list[Fact]:
    """Each graph in each precision, and how far the lower ones are from ieee."""
    return [fact for graph in GRAPHS for precision in NOTES for fact in _facts(graph, precision)]
