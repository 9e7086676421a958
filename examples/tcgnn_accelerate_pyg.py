"""One line for an existing PyTorch Geometric model: train it as it is, then accelerated, and compare.

    python examples/tcgnn_accelerate_pyg.py --model gat --dataset cora --root ../shared/data

Both trainings start from the same weights. In the end both kinds of layers compute the logits of the trained weights,
which must agree; accuracies may differ by what dropout draws.
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


def fit(model: torch.nn.Module, graph: tcg.data.GraphData, *, epochs: int, seed: int) -> tuple[float, float]:
    """Train in plain PyTorch; returns the test accuracy in percent and the median milliseconds of an epoch."""
    recipe = model.recipe
    decayed = [p for n, p in model.named_parameters() if recipe.decayed is None or n.split(".")[0] in recipe.decayed]
    others = [p for p in model.parameters() if not any(p is q for q in decayed)]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others}]
    optimizer = torch.optim.Adam([group for group in groups if group["params"]], lr=recipe.lr)
    torch.manual_seed(seed)
    model.train()
    times = []
    for _ in range(epochs):
        began = now(graph)
        optimizer.zero_grad()
        logits = model(graph.x, graph.edge_index)
        cross_entropy(logits[graph.train_mask], graph.y[graph.train_mask]).backward()
        optimizer.step()
        times.append(now(graph) - began)
    right = logits_of(model, graph).argmax(1)[graph.test_mask] == graph.y[graph.test_mask]
    return 100 * right.double().mean().item(), median(times)


@torch.no_grad()
def logits_of(model: torch.nn.Module, graph: tcg.data.GraphData) -> torch.Tensor:
    return model.eval()(graph.x, graph.edge_index)


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
    line.add_argument("--epochs", type=int, help="default: the paper's (200)")
    line.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = line.parse_args(arguments)
    for name in ("seeds", "epochs", "threads"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            line.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    torch.set_num_threads(options.threads)
    try:
        import torch_geometric.nn
    except ImportError:
        print("this example accelerates a model of PyTorch Geometric: pip install torch-tcgnn[pyg]", file=sys.stderr)
        return 2
    try:
        graph = load(options.dataset, options.root)
    except FileNotFoundError as error:
        print(f"{error}\nor run with --dataset digits, which comes with scikit-learn", file=sys.stderr)
        return 2
    graph = graph.to("cuda" if torch.cuda.is_available() else "cpu")

    kind = MODELS[options.model]
    epochs = options.epochs or kind.recipe.epochs
    results: dict[str, list[tuple[float, float]]] = {"PyG": [], "accelerated": []}
    for seed in range(options.seeds):
        torch.manual_seed(seed)
        plain = kind(torch_geometric.nn, graph.num_features, graph.num_classes).to(graph.x.device)
        model = tcg.accelerate(copy.deepcopy(plain))
        if seed == 0:
            print(tcg.report(model))
        results["PyG"].append(fit(plain, graph, epochs=epochs, seed=seed))
        results["accelerated"].append(fit(model, graph, epochs=epochs, seed=seed))
    ours = logits_of(model, graph)
    theirs = logits_of(tcg.restore(model), graph)
    deviation = float((ours - theirs).abs().max() / theirs.abs().max())

    print(f"{options.model} on {graph!r}, {epochs} epochs, {options.seeds} seed(s), {options.threads} thread(s)")
    for name, runs in results.items():
        accuracies, times = zip(*runs)
        print(f"  {name:<12} test accuracy {mean(accuracies):.1f} %, {median(times):.2f} ms an epoch")
    times = {name: median(time for _, time in runs) for name, runs in results.items()}
    print(f"  speed-up of an epoch {times['PyG'] / times['accelerated']:.2f}x")
    print(f"  logits of the trained weights, accelerated against PyG: largest difference {deviation:.1e} (relative)")
    if deviation > 1e-4:
        print("the two disagree", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
