"""Train the GCN, GAT or AGNN of its paper on a citation graph with Lightning, and print the test accuracy.

    python examples/tcgnn_cora.py --model gcn --dataset cora --seeds 10 --root ../shared/data

The graph is translated once; every layer works on the translation. `--layers pyg` runs PyTorch Geometric's own layers
under the same hyper-parameters. Without the files of Cora, `--dataset digits` runs on data that scikit-learn brings.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from statistics import mean, stdev

import torch
from citation import DATASETS, MODELS, Run, load, train

PUBLISHED = {
    ("gcn", "cora"): "81.5 (Kipf & Welling 2017)",
    ("gcn", "citeseer"): "70.3 (Kipf & Welling 2017)",
    ("gcn", "pubmed"): "79.0 (Kipf & Welling 2017)",
    ("gat", "cora"): "83.0 ± 0.7 (Veličković et al. 2018)",
    ("gat", "citeseer"): "72.5 ± 0.7 (Veličković et al. 2018)",
    ("gat", "pubmed"): "79.0 ± 0.3 (Veličković et al. 2018)",
    ("agnn", "cora"): "83.1 (Thekumparampil et al. 2018, second hand)",
    ("agnn", "citeseer"): "71.7 (Thekumparampil et al. 2018, second hand)",
    ("agnn", "pubmed"): "79.9 (Thekumparampil et al. 2018, second hand)",
}
LAYERS = {"tcgnn": "torch_tcgnn.nn", "pyg": "torch_geometric.nn"}


def main(arguments: list[str] | None = None) -> int:
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("--model", choices=MODELS, default="gcn")
    line.add_argument("--dataset", choices=DATASETS, default="cora")
    line.add_argument("--seeds", type=int, default=3, help="number of trainings, seeds 0, 1, … (default: %(default)s)")
    line.add_argument("--root", help="folder of the data set's files; default: where torch_tcgnn.data looks")
    line.add_argument("--layers", choices=LAYERS, default="tcgnn")
    line.add_argument("--epochs", type=int, help="default: the recipe's, 200 (agnn: 1000)")
    line.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = line.parse_args(arguments)
    for name in ("seeds", "epochs", "threads"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            line.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    torch.set_num_threads(options.threads)
    try:
        graph = load(options.dataset, options.root)
    except FileNotFoundError as error:
        print(f"{error}\nor run with --dataset digits, which comes with scikit-learn", file=sys.stderr)
        return 2

    layers = importlib.import_module(LAYERS[options.layers])
    print(f"{options.model} on {graph!r}, layers of {layers.__name__}, {options.threads} thread(s)")
    runs: list[Run] = []
    for seed in range(options.seeds):
        run = train(
            options.model,
            graph,
            layers=layers,
            translate=options.layers == "tcgnn",
            seed=seed,
            epochs=options.epochs,
        )
        runs.append(run)
        print(f"  seed {seed}: test accuracy {run.accuracy:.1f} %, {run.step_ms:.1f} ms a step", flush=True)

    accuracies = [run.accuracy for run in runs]
    spread = f" ± {stdev(accuracies):.1f}" if len(runs) > 1 else ""
    published = PUBLISHED.get((options.model, options.dataset))
    print(f"test accuracy {mean(accuracies):.1f}{spread} %" + (f"; published {published}" if published else ""))
    print(
        f"{mean(run.epoch_ms for run in runs):.1f} ms an epoch, of which {mean(run.step_ms for run in runs):.1f} ms "
        "are the training step; the rest is the validation pass and Lightning"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
