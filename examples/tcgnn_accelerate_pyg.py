"""One line for an existing PyTorch Geometric model: train it as it is, then accelerated, and compare.

    python examples/tcgnn_accelerate_pyg.py --model gat --dataset cora --root ../shared/data

Both trainings start from the same weights and take their steps in turns. In the end both kinds of layers compute the
logits of the same trained weights, which must agree; accuracies differ where dropout on attention draws otherwise.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from statistics import mean, median

import torch
import torch_tcgnn as tcg
from citation import DATASETS, MODELS, load
from torch.nn.functional import cross_entropy


class Training:
    """One model in training, in plain PyTorch, with the milliseconds that each step took."""

    def __init__(self, model: torch.nn.Module, graph: tcg.data.GraphData) -> None:
        self.model, self.graph = model, graph
        recipe = model.recipe
        named = list(model.named_parameters())
        decayed = [p for name, p in named if recipe.decayed is None or name.split(".")[0] in recipe.decayed]
        free = [p for _, p in named if not any(p is q for q in decayed)]
        groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": free}]
        self.optimizer = torch.optim.Adam([group for group in groups if group["params"]], lr=recipe.lr)
        self.times: list[float] = []

    def step(self, seed: int) -> None:
        """Forward, backward and update; `seed` is that of dropout."""
        torch.manual_seed(seed)
        self.model.train()
        graph, began = self.graph, now(self.graph)
        self.optimizer.zero_grad()
        logits = self.model(graph.x, graph.edge_index)
        cross_entropy(logits[graph.train_mask], graph.y[graph.train_mask]).backward()
        self.optimizer.step()
        self.times.append(now(graph) - began)

    @torch.no_grad()
    def logits(self) -> torch.Tensor:
        return self.model.eval()(self.graph.x, self.graph.edge_index)

    def accuracy(self) -> float:
        """Percent of the test nodes."""
        mask = self.graph.test_mask
        return 100 * (self.logits().argmax(1)[mask] == self.graph.y[mask]).double().mean().item()


def now(graph: tcg.data.GraphData) -> float:
    """Milliseconds."""
    if graph.x.is_cuda:
        torch.cuda.synchronize(graph.x.device)
    return 1e3 * time.perf_counter()


def main(arguments: list[str] | None = None) -> int:
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("--model", choices=MODELS, default="gcn")
    line.add_argument("--dataset", choices=DATASETS, default="cora")
    line.add_argument("--root", help="folder of the data set's files; default: where torch_tcgnn.data looks")
    line.add_argument("--seeds", type=int, default=3, help="number of trainings of each kind (default: %(default)s)")
    line.add_argument("--epochs", type=int, help="default: the recipe's, 200 (agnn: 1000)")
    line.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = line.parse_args(arguments)
    for name in ("seeds", "epochs", "threads"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            line.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    torch.set_num_threads(options.threads)
    try:
        import torch_geometric.nn
    except ImportError:
        print("this example accelerates a model of PyTorch Geometric: pip install 'torch-tcgnn[pyg]'", file=sys.stderr)
        return 2
    try:
        graph = load(options.dataset, options.root)
    except FileNotFoundError as error:
        print(f"{error}\nor run with --dataset digits, which comes with scikit-learn", file=sys.stderr)
        return 2
    graph = graph.to("cuda" if torch.cuda.is_available() else "cpu")

    kind = MODELS[options.model]
    epochs = options.epochs or kind.recipe.epochs
    accuracies: dict[str, list[float]] = {"PyG": [], "accelerated": []}
    times: dict[str, list[float]] = {"PyG": [], "accelerated": []}
    for seed in range(options.seeds):
        torch.manual_seed(seed)
        plain = kind(torch_geometric.nn, graph.num_features, graph.num_classes).to(graph.x.device)
        model = tcg.accelerate(copy.deepcopy(plain))
        if seed == 0:
            print(tcg.report(model))
        trainings = {"PyG": Training(plain, graph), "accelerated": Training(model, graph)}
        for epoch in range(epochs):
            for training in trainings.values():  # in turns, so that a busy machine slows both alike
                training.step(seed * epochs + epoch)
        for name, training in trainings.items():
            accuracies[name].append(training.accuracy())
            times[name] += training.times
    ours = trainings["accelerated"].logits()
    tcg.restore(model)
    theirs = trainings["accelerated"].logits()
    deviation = float((ours - theirs).abs().max() / theirs.abs().max())

    print(f"{options.model} on {graph!r}, {epochs} epochs, {options.seeds} seed(s), {options.threads} thread(s)")
    for name, found in accuracies.items():
        print(f"  {name:<12} test accuracy {mean(found):.1f} %, {median(times[name]):.2f} ms a step")
    print(f"  speed-up of a step {median(times['PyG']) / median(times['accelerated']):.2f}x")
    print(f"  logits of the trained weights, accelerated against PyG: largest difference {deviation:.1e} (relative)")
    if deviation > 1e-4:
        print("the two disagree", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
