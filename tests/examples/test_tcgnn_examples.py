"""The examples of torch-tcgnn run, on few epochs and on data that installs with the dependencies."""

import importlib
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("lightning", reason="the examples train with lightning")
pytest.importorskip("sklearn", reason="digits come with scikit-learn")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ["--dataset", "digits", "--epochs", "2", "--seeds", "1", "--threads", "1"]


@pytest.fixture
def example(monkeypatch):
    """Import an example as its own script would see it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


@pytest.mark.parametrize("model", ["gcn", "agnn", "gat"])
def test_cora_example_trains_each_model(example, model, capsys):
    assert example("tcgnn_cora").main(["--model", model, *SMALL]) == 0
    found = re.search(r"^test accuracy (\d+\.\d) %", capsys.readouterr().out, re.M)
    assert found
    assert 0 <= float(found.group(1)) <= 100


def test_cora_example_learns(example, capsys):
    arguments = ["--dataset", "digits", "--epochs", "60", "--seeds", "2", "--threads", "1"]
    assert example("tcgnn_cora").main(arguments) == 0
    found = re.search(r"^test accuracy (\d+\.\d) ± \d+\.\d %", capsys.readouterr().out, re.M)
    assert found
    assert float(found.group(1)) > 80


def test_cora_example_says_what_to_do_without_the_files(example, capsys, tmp_path):
    assert example("tcgnn_cora").main(["--dataset", "cora", "--root", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "'cora'" in said
    assert "--dataset digits" in said


def test_the_map_of_nonzero_entries_is_the_linear_map_behind_dropout(example):
    citation = example("citation")
    x = torch.rand(6, 20, generator=torch.Generator().manual_seed(0))
    x[x < 0.7] = 0
    x[2] = x[5] = 0  # nodes without words
    sparse = citation.InputMap(20, 4, 0.5)
    dense = torch.nn.Linear(20, 4)
    dense.load_state_dict(sparse.state_dict())
    dropped = citation.InputDropout(0.5)
    for _ in range(2):  # the second time from what the first has found
        torch.manual_seed(1)
        got = sparse.train()(x)
        torch.manual_seed(1)
        expected = dense(dropped.train()(x))
        torch.testing.assert_close(got, expected)
        assert not torch.allclose(got, sparse.eval()(x))
        torch.testing.assert_close(sparse.eval()(x), dense(x))
        torch.testing.assert_close(
            torch.autograd.grad(got.square().sum(), [sparse.weight, sparse.bias]),
            torch.autograd.grad(expected.square().sum(), [dense.weight, dense.bias]),
        )
    torch.testing.assert_close(sparse.eval()(2 * x), dense(2 * x))


def test_the_first_of_the_best_epochs_is_kept(example):
    best = example("citation").BestWeights()
    module = torch.nn.Linear(1, 1)
    trainer = type("Trainer", (), {})()
    for accuracy, value in ((0.5, 0.0), (0.7, 1.0), (0.7, 2.0), (0.6, 3.0)):
        torch.nn.init.constant_(module.weight, value)
        trainer.callback_metrics = {"val_accuracy": torch.tensor(accuracy)}
        best.on_validation_end(trainer, module)
    assert best.weights["weight"].item() == 1.0


@pytest.mark.parametrize("model", ["gcn", "gat", "agnn"])
def test_accelerated_pyg_model_agrees(example, model, capsys):
    pytest.importorskip("torch_geometric", reason="the example accelerates a model of PyG")
    assert example("tcgnn_accelerate_pyg").main(["--model", model, *SMALL]) == 0
    said = capsys.readouterr().out
    assert "accelerated" in said
    assert re.search(r"speed-up of a step \d+\.\d+x", said)
