"""Test accuracy of the papers' experiments on citation graphs, with our layers and with PyG's under the same settings.

Models, hyper-parameters and the training run are those of `examples/citation.py`: full-batch Adam by Lightning, 200
epochs (AGNN: 1,000), without logger, progress bar and checkpoints; the accuracy is that of the epoch with the best
validation accuracy. A target is the published mean less its standard deviation.
"""

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.case import Fact

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KIPF = "81.5 ± 0.7 (cora) and 70.3 ± 0.8 (citeseer) after Kipf & Welling 2017"
PUBLISHED = {
    ("gcn", "cora"): (">= 80.8", f"published: {KIPF}"),
    ("gcn", "citeseer"): (">= 69.5", f"published: {KIPF}"),
    ("agnn", "cora"): (">= 83.0", "published: 83.1 ± 0.1, Thekumparampil et al. 2018"),
    ("gat", "cora"): (">= 82.2", "published: 83.0 ± 0.8 after Veličković et al. 2018"),
}
SEEDS = {("gcn", "cora"): 10, ("gcn", "citeseer"): 10, ("agnn", "cora"): 5, ("gat", "cora"): 5}
PYG_SEEDS = 3

__all__ = ["facts"]


def _accuracy(model: str, graph: str, layers: str, device: torch.device, seed: int) -> float:
    """Percent of the test nodes, of one training on the CPU."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    citation = import_module("citation")
    run = citation.train(
        model, citation.load(graph), layers=import_module(layers), translate=layers == "torch_tcgnn.nn", seed=seed
    )
    return run.accuracy


def _fact(model: str, graph: str, layers: str, seeds: Sequence[int]) -> Fact:
    target, published = PUBLISHED[model, graph]
    ours = layers == "torch_tcgnn.nn"
    return Fact(
        name=f"accuracy/{model}/{graph}" + ("" if ours else "/pyg-layers"),
        measure=partial(_accuracy, model, graph, layers),
        unit="%",
        target=target if ours else "",
        seeds=tuple(seeds),
        tags=("accuracy", model, graph, "cpu"),
        devices=("cpu",),  # needs lightning, which the project's environment has
        note=published if ours else "the same model, hyper-parameters and seeds with the layers of torch-geometric",
    )


def facts() -> list[Fact]:
    """Ours over all seeds, PyG's over the first few of them."""
    runs = [("torch_tcgnn.nn", key, range(count)) for key, count in SEEDS.items()]
    runs += [("torch_geometric.nn", key, range(PYG_SEEDS)) for key in SEEDS]
    return [_fact(*key, layers, seeds) for layers, key, seeds in runs]
