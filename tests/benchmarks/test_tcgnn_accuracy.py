"""The accuracy facts: readable targets, and a difference that is taken seed by seed."""

import pytest
import torch

from benchmarks.driver import measure_fact, meets
from benchmarks.torch_tcgnn import accuracy

CPU = torch.device("cpu")


@pytest.fixture
def trained(monkeypatch):
    """Accuracies without training: 80 + seed with PyG's layers, ours ahead by `ahead[seed]`."""
    ahead = [0.2] * 10
    runs = []

    def train(model, graph, layers, seed):
        runs.append((model, graph, layers, seed))
        return 80 + seed + (ahead[seed] if layers == accuracy.OURS else 0)

    monkeypatch.setattr(accuracy, "_accuracy", train)
    return ahead, runs


def named(name):
    (fact,) = (fact for fact in accuracy.facts() if fact.name == name)
    return fact


def test_every_target_can_be_read():
    targets = [fact.target for fact in accuracy.facts() if fact.target]
    assert len(targets) == 2 * len(accuracy.TARGETS) - len(accuracy.ALONE)
    assert [meets(80.0, target) for target in targets].count(True) < len(targets)


def test_ours_and_pygs_train_on_the_same_ten_seeds(trained):
    _, runs = trained
    measure_fact(named("accuracy/gat/cora"), CPU)
    measure_fact(named("accuracy/gat/cora/pyg-layers"), CPU)
    assert [run[3] for run in runs] == [*range(10), *range(10)]
    assert [run[2] for run in runs] == [accuracy.OURS] * 10 + [accuracy.PYG] * 10


def test_the_difference_is_the_mean_over_seeds_of_ours_less_pygs(trained):
    ahead, _ = trained
    result = measure_fact(named("accuracy/gat/cora/ours-minus-pyg"), CPU)
    assert (result.value, result.met) == (pytest.approx(0.2), True)
    ahead[:] = [-0.6] * 10
    assert measure_fact(named("accuracy/gat/cora/ours-minus-pyg"), CPU).met is False
