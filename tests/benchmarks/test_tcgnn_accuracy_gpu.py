"""The accuracy facts of a GPU: the recipe of the examples, in the precision that a fact names, on tensor cores."""

from dataclasses import replace

import pytest
import torch
from torch_tcgnn import data, nn
from torch_tcgnn.nn import features

from benchmarks.driver import measure_fact, meets
from benchmarks.torch_tcgnn import accuracy, accuracy_gpu

CPU = torch.device("cpu")
FEATURES = {"ieee": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
LAYERS = {"ieee": "ieee", "tf32": "tf32", "bf16": "ieee"}


@pytest.fixture
def citation():
    pytest.importorskip("lightning", reason="the examples train with lightning")
    return accuracy.experiments()


@pytest.fixture
def groups():
    """Seven groups of 40 nodes with noisy features, a third of the nodes for each purpose."""
    graph = data.sbm([40] * 7, 0.05, 0.01)
    noise = torch.randn(graph.num_nodes, 20, generator=torch.Generator().manual_seed(0))
    x = torch.eye(7).repeat(1, 3)[graph.y, :20] + 2 * noise
    third = torch.arange(graph.num_nodes) % 3
    return replace(graph, x=x, train_mask=third == 0, val_mask=third == 1, test_mask=third == 2)


@pytest.fixture
def trained(monkeypatch):
    """Accuracies without training: 80 + seed, with TF32 `points["tf32"]` more, with bfloat16 `points["bf16"]`."""
    points, runs = {"ieee": 0.0, "tf32": 0.2, "bf16": -0.3}, []

    def train(graph, precision, device, seed):
        runs.append((graph, precision, device, seed))
        return 80 + seed + points[precision]

    monkeypatch.setattr(accuracy_gpu, "_accuracy", train)
    return points, runs


def named(name):
    (fact,) = (fact for fact in accuracy_gpu.facts() if fact.name == name)
    return fact


def test_each_graph_and_precision_has_the_target_of_the_cpu_and_ten_seeds():
    on_cpu = {fact.name: fact for fact in accuracy.facts()}
    for graph, enough in (("cora", 80.8), ("citeseer", 69.5)):
        for precision in ("ieee", "tf32", "bf16"):
            fact = named(f"accuracy/gcn/{graph}/{precision}")
            assert fact.target == on_cpu[f"accuracy/gcn/{graph}"].target
            assert [meets(value, fact.target) for value in (enough, enough - 0.1)] == [True, False]
            assert (fact.unit, fact.seeds, fact.devices) == ("%", tuple(range(10)), ("cuda",))
            assert {"accuracy", "gcn", graph, precision, "gpu"} == set(fact.tags)
            assert "tensor cores" in fact.note
            assert "published" in fact.note
    assert len(accuracy_gpu.facts()) == 2 * 3 + 2 * 2


def test_a_fact_trains_its_graph_in_its_precision_once_a_seed(trained):
    _, runs = trained
    result = measure_fact(named("accuracy/gcn/citeseer/bf16"), CPU)
    assert runs == [("citeseer", "bf16", CPU, seed) for seed in range(10)]
    assert result.value == pytest.approx(84.2)


def test_the_difference_is_the_mean_over_seeds_of_the_lower_precision_less_ieee(trained):
    points, _ = trained
    for precision in ("tf32", "bf16"):
        result = measure_fact(named(f"accuracy/gcn/cora/{precision}-minus-ieee"), CPU)
        assert result.value == pytest.approx(points[precision])


@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, Lightning trains on it")
def test_the_loop_gives_the_accuracy_of_lightnings_run(citation, groups):
    run = citation.train("gcn", groups, layers=nn, translate=True, seed=3, epochs=15)
    got = accuracy_gpu.train(groups, "ieee", CPU, seed=3, path="auto", epochs=15)
    assert got == pytest.approx(run.accuracy, abs=1e-4)
    assert got != pytest.approx(accuracy_gpu.train(groups, "ieee", CPU, seed=4, path="auto", epochs=15), abs=1e-4)


@pytest.mark.parametrize("precision", accuracy_gpu.NOTES)
def test_layers_get_features_of_the_precision_and_pytorchs_switch_is_set(precision, citation, groups, monkeypatch):
    seen = []
    spmm = features.spmm

    def recorder(g, x, weight, **options):
        switch = torch.backends.cuda.matmul.fp32_precision == "tf32"
        out = spmm(g, x, weight, **options)
        seen.append((x.dtype, options["precision"], switch, out.dtype))
        return out

    monkeypatch.setattr(features, "spmm", recorder)
    got = accuracy_gpu.train(groups, precision, CPU, seed=0, path="auto", epochs=2)
    products = (FEATURES[precision], LAYERS[precision], precision == "tf32", torch.float32)
    assert seen == [products] * 8  # two layers, two epochs, training and validation
    assert 0 < got < 100
    assert torch.backends.cuda.matmul.fp32_precision != "tf32"


def test_the_facts_ask_for_tensor_cores(citation, groups, monkeypatch):
    monkeypatch.setattr(citation, "load", lambda name: groups)
    for fact in accuracy_gpu.facts():
        with pytest.raises(RuntimeError, match="path='tc' needs a GPU"):
            fact.measure(CPU, 0)


def test_missing_files_are_said(citation, monkeypatch, tmp_path):
    load = citation.load
    monkeypatch.setattr(citation, "load", lambda name: load(name, tmp_path))
    with pytest.raises(FileNotFoundError, match="'cora'"):
        named("accuracy/gcn/cora/tf32").measure(CPU, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", accuracy_gpu.NOTES)
def test_every_sum_over_edges_runs_on_tensor_cores(precision, citation, groups, monkeypatch):
    from torch_tcgnn.kernels import choose

    if choose.nvrtc.unavailable():
        pytest.skip("the kernels recorded here are those in CUDA C++")
    seen = []
    spmm = choose.bitblock_spmm.spmm

    def blocks(adjacency, x, weight, precision, out):
        seen.append((x.dtype, precision))
        return spmm(adjacency, x, weight, precision, out)

    def rows(*operands):
        raise AssertionError("a sum ran on CUDA cores")

    monkeypatch.setattr(choose.bitblock_spmm, "spmm", blocks)
    monkeypatch.setattr(choose.csr_spmm, "spmm", rows)
    accuracy_gpu.train(groups, precision, torch.device("cuda", 0), seed=0, epochs=1)
    layer = LAYERS[precision]
    forward, backward = (FEATURES[precision], layer), (torch.float32, layer)
    assert seen == [forward] * 2 + [backward] * 2 + [forward] * 2
