"""Lightning on translated graphs: real Trainer runs of a few steps on a small graph."""

import dataclasses
import importlib
import logging
import sys

import pytest
import torch

pytest.importorskip("lightning", reason="extra: lightning")
pytest.importorskip("torchmetrics", reason="extra: lightning")

import torch_tcgnn as tcg
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader
from torch_tcgnn import data
from torch_tcgnn.lightning import FullGraph, GraphStatsMonitor, NodeBatch, NodeClassifier, TCGNNAccelerator

NODES, FEATURES, CLASSES = 60, 8, 3


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(0, verbose=False)


@pytest.fixture
def graph() -> data.GraphData:
    """Three communities whose features give the class away."""
    random = torch.Generator().manual_seed(0)
    y = torch.arange(NODES) % CLASSES
    source, target = torch.randint(0, NODES, (2, 600), generator=random)
    same = y[source] == y[target]
    edge_index = data.undirected(torch.stack([source[same], target[same]]), NODES)
    x = torch.randn(NODES, FEATURES, generator=random)
    x[torch.arange(NODES), y] += 2.0
    part = torch.arange(NODES) // CLASSES % 3
    masks = {name: part == i for i, name in enumerate(("train_mask", "val_mask", "test_mask"))}
    return data.GraphData(edge_index=edge_index, num_nodes=NODES, name="communities", x=x, y=y, **masks)


class GCN(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.conv1 = layers.GCNConv(FEATURES, 16)
        self.conv2 = layers.GCNConv(16, CLASSES)

    def forward(self, x, graph):
        return self.conv2(self.conv1(x, graph).relu(), graph)


def classifier(layers=tcg.nn, **options) -> NodeClassifier:
    seed_everything(0, verbose=False)
    return NodeClassifier(GCN(layers), num_classes=CLASSES, **({"lr": 0.05} | options))


def trainer(folder, **options) -> Trainer:
    quiet = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "enable_checkpointing": False, "default_root_dir": folder}
    return Trainer(**(quiet | {"max_epochs": 2} | options))


@pytest.fixture
def pyg():
    return pytest.importorskip("torch_geometric.nn", reason="extra: pyg")


def layer_modules(model: torch.nn.Module) -> list[str]:
    return [type(m).__module__.split(".")[0] for n, m in model.named_modules() if n.endswith(("conv1", "conv2"))]


class Failing(NodeClassifier):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        raise ArithmeticError("planted")


# --- NodeClassifier and FullGraph ---


def test_a_classifier_learns_the_graph(graph, tmp_path):
    run = trainer(tmp_path, max_epochs=40)
    model = classifier()
    run.fit(model, datamodule=FullGraph(graph))
    (tested,) = run.test(model, datamodule=FullGraph(graph), verbose=False)
    assert tested["test_accuracy"] > 0.9
    assert set(run.callback_metrics) == {"test_loss", "test_accuracy"}


def test_logged_metrics_are_those_of_the_masked_nodes(graph, tmp_path):
    model = classifier()
    (tested,) = trainer(tmp_path).test(model, datamodule=FullGraph(graph), verbose=False)
    logits = model(graph.x, graph.edge_index)[graph.test_mask]
    y = graph.y[graph.test_mask]
    assert tested["test_accuracy"] == pytest.approx((logits.argmax(1) == y).double().mean().item())
    assert tested["test_loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, y).item(), rel=1e-5)


def test_one_step_is_one_step_of_adam_on_the_whole_graph(graph, tmp_path):
    model = classifier(weight_decay=0.1, decayed=["conv1"])
    twin = GCN(tcg.nn)
    twin.load_state_dict(model.model.state_dict())
    trainer(tmp_path, max_steps=3, max_epochs=-1).fit(model, datamodule=FullGraph(graph))
    groups = [{"params": twin.conv1.parameters(), "weight_decay": 0.1}, {"params": twin.conv2.parameters()}]
    adam = torch.optim.Adam(groups, lr=0.05)
    for _ in range(3):
        adam.zero_grad()
        logits = twin(graph.x, graph.edge_index)[graph.train_mask]
        torch.nn.functional.cross_entropy(logits, graph.y[graph.train_mask]).backward()
        adam.step()
    torch.testing.assert_close(model.model.state_dict(), twin.state_dict())


def test_the_graph_is_translated_once_for_all_epochs_and_stages(graph, tmp_path, monkeypatch):
    built = []
    original = tcg.TCGraph.from_edge_index.__func__

    def counting(cls, edge_index, *args, **options):
        built.append(edge_index)
        return original(cls, edge_index, *args, **options)

    monkeypatch.setattr(tcg.TCGraph, "from_edge_index", classmethod(counting))
    graphs = FullGraph(graph)
    run = trainer(tmp_path, max_epochs=3)
    model = classifier()
    run.fit(model, datamodule=graphs)
    run.test(model, datamodule=graphs, verbose=False)
    assert sum(e is graph.edge_index for e in built) == 1


def test_full_graph_hands_on_what_it_was_told_to(graph):
    weighted = dataclasses.replace(graph, edge_weight=torch.rand(graph.num_edges))
    batch = FullGraph(weighted, reorder="degree").transfer_batch_to_device(weighted, torch.device("cpu"), 0)
    assert not isinstance(batch.graph, torch.Tensor)
    assert batch.graph.reorder == "degree"
    torch.testing.assert_close(batch.graph.weight, weighted.edge_weight)
    plain = FullGraph(graph, translate=False).transfer_batch_to_device(graph, torch.device("cpu"), 0)
    assert torch.equal(plain.graph, graph.edge_index)


def test_translated_or_not_the_losses_are_the_same(graph, tmp_path):
    losses = []
    for translate in (True, False):
        run = trainer(tmp_path)
        run.fit(classifier(), datamodule=FullGraph(graph, translate=translate))
        losses.append(run.callback_metrics["train_loss"])
    torch.testing.assert_close(*losses)


def test_predictions_are_logits_of_every_node(graph, tmp_path):
    model = classifier()
    (logits,) = trainer(tmp_path).predict(model, datamodule=FullGraph(graph))
    torch.testing.assert_close(logits, model.eval()(graph.x, graph.edge_index))


def test_a_node_batch_moves_with_its_graph(graph):
    g = tcg.TCGraph.from_edge_index(graph.edge_index, NODES)
    batch = NodeBatch(x=graph.x, graph=g, y=graph.y, train_mask=graph.train_mask).to("meta")
    assert {batch.x.device.type, batch.y.device.type, batch.graph.device.type, batch.train_mask.device.type} == {"meta"}
    assert batch.val_mask is None


def test_a_batch_of_pyg_trains(graph, tmp_path, pyg):
    from torch_geometric.data import Data

    masks = {name: getattr(graph, name) for name in ("train_mask", "val_mask", "test_mask")}
    batch = Data(x=graph.x, edge_index=graph.edge_index, y=graph.y, **masks)
    loader = DataLoader([batch], batch_size=None)
    run = trainer(tmp_path)
    run.fit(classifier(pyg), train_dataloaders=loader, val_dataloaders=loader)
    assert torch.isfinite(run.callback_metrics["train_loss"])


def test_bad_options_are_named(graph):
    model = GCN(tcg.nn)
    with pytest.raises(ValueError, match=r"num_classes.*got 1"):
        NodeClassifier(model, num_classes=1)
    with pytest.raises(ValueError, match=r"lr.*-1"):
        NodeClassifier(model, num_classes=3, lr=-1)
    with pytest.raises(ValueError, match=r"weight_decay.*-0\.5"):
        NodeClassifier(model, num_classes=3, weight_decay=-0.5)
    with pytest.raises(ValueError, match=r"'conv3'.*conv1\.bias"):
        NodeClassifier(model, num_classes=3, decayed=["conv3"])
    with pytest.raises(ValueError, match=r"x, y and three masks.*lacks y, val_mask"):
        FullGraph(dataclasses.replace(graph, y=None, val_mask=None))
    with pytest.raises(ValueError, match=r"translate=False.*edge weights"):
        FullGraph(dataclasses.replace(graph, edge_weight=torch.ones(graph.num_edges)), translate=False)
    with pytest.raises(ValueError, match=r"reorder must be one of .*'x'"):
        FullGraph(graph, reorder="x")
    with pytest.raises(ValueError, match=r"path must be one of .*'x'"):
        FullGraph(graph, path="x")
    with pytest.raises(ValueError, match=r"every_n_batches.*got 0"):
        GraphStatsMonitor(every_n_batches=0)
    with pytest.raises(ValueError, match=r"precision.*'fp8'"):
        TCGNNAccelerator(precision="fp8")


def test_a_mask_without_nodes_is_an_error_not_nan(graph, tmp_path):
    empty = dataclasses.replace(graph, train_mask=torch.zeros(NODES, dtype=torch.bool))
    with pytest.raises(ValueError, match="train_mask selects no node of the 60"):
        trainer(tmp_path).fit(classifier(), datamodule=FullGraph(empty))


def test_resuming_continues_the_same_training(graph, tmp_path):
    whole = classifier()
    trainer(tmp_path, max_epochs=4).fit(whole, datamodule=FullGraph(graph))
    first = trainer(tmp_path, max_epochs=2)
    first.fit(classifier(), datamodule=FullGraph(graph))
    first.save_checkpoint(tmp_path / "half.ckpt")
    second = classifier()
    trainer(tmp_path, max_epochs=4).fit(second, datamodule=FullGraph(graph), ckpt_path=tmp_path / "half.ckpt")
    torch.testing.assert_close(second.state_dict(), whole.state_dict())


def test_load_from_checkpoint_restores_options(graph, tmp_path):
    run = trainer(tmp_path)
    model = classifier(weight_decay=0.25, decayed=("conv2",))
    run.fit(model, datamodule=FullGraph(graph))
    run.save_checkpoint(tmp_path / "a.ckpt")
    loaded = NodeClassifier.load_from_checkpoint(tmp_path / "a.ckpt", model=GCN(tcg.nn))
    assert (loaded.weight_decay, loaded.decayed, loaded.lr) == (0.25, ["conv2"], 0.05)
    torch.testing.assert_close(loaded.state_dict(), model.state_dict())


# --- TCGNNAccelerator ---


class Watched(NodeClassifier):
    """Notes which layers work in each step."""

    def training_step(self, batch, batch_idx):
        self.seen = layer_modules(self)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("options", [{}, {"fast_dev_run": True}])
def test_layers_are_ours_while_it_trains_and_pygs_afterwards(graph, tmp_path, pyg, options):
    model = Watched(GCN(pyg), num_classes=CLASSES)
    parameters = {name: id(p) for name, p in model.named_parameters()}
    run = trainer(tmp_path, callbacks=[TCGNNAccelerator()], **options)
    run.fit(model, datamodule=FullGraph(graph, translate=False))
    assert model.seen == ["torch_tcgnn", "torch_tcgnn"]
    assert layer_modules(model) == ["torch_geometric", "torch_geometric"]
    assert {name: id(p) for name, p in model.named_parameters()} == parameters


def test_accelerated_training_ends_in_the_same_weights(graph, tmp_path, pyg):
    plain, fast = classifier(pyg), classifier(pyg)
    trainer(tmp_path, max_epochs=5).fit(plain, datamodule=FullGraph(graph, translate=False))
    accelerated = trainer(tmp_path, max_epochs=5, callbacks=[TCGNNAccelerator()])
    accelerated.fit(fast, datamodule=FullGraph(graph))  # a TCGraph, which PyG's own layers would refuse
    torch.testing.assert_close(fast.state_dict(), plain.state_dict(), rtol=1e-4, atol=1e-5)


def test_pygs_layers_are_back_after_an_exception(graph, tmp_path, pyg):
    model = Failing(GCN(pyg), num_classes=CLASSES)
    with pytest.raises(ArithmeticError, match="planted"):
        trainer(tmp_path, callbacks=[TCGNNAccelerator()]).fit(model, datamodule=FullGraph(graph, translate=False))
    assert layer_modules(model) == ["torch_geometric", "torch_geometric"]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_checkpoint_of_an_accelerated_run_loads_into_the_plain_pyg_model(graph, tmp_path, pyg):
    run = trainer(tmp_path, callbacks=[TCGNNAccelerator(), Saver(tmp_path / "a.ckpt")])
    model = classifier(pyg)
    run.fit(model, datamodule=FullGraph(graph, translate=False))
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)["state_dict"]
    plain = GCN(pyg)
    plain.load_state_dict({name.removeprefix("model."): value for name, value in saved.items()}, strict=True)
    torch.testing.assert_close(plain.state_dict(), model.model.state_dict())
    loaded = NodeClassifier.load_from_checkpoint(tmp_path / "a.ckpt", model=GCN(pyg))
    assert layer_modules(loaded) == ["torch_geometric", "torch_geometric"]


class Saver(Callback):
    """Saves while the layers are exchanged, which after `fit` they no longer are."""

    def __init__(self, path):
        self.path = path

    def on_train_end(self, trainer, pl_module):
        assert layer_modules(pl_module) == ["torch_tcgnn", "torch_tcgnn"]
        trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("resume_with", [True, False])
def test_resuming_with_and_without_the_callback(graph, tmp_path, pyg, resume_with):
    whole = classifier(pyg)
    trainer(tmp_path, max_epochs=4).fit(whole, datamodule=FullGraph(graph, translate=False))
    run = trainer(tmp_path, max_epochs=2, callbacks=[TCGNNAccelerator(), Saver(tmp_path / "half.ckpt")])
    run.fit(classifier(pyg), datamodule=FullGraph(graph, translate=False))
    second = classifier(pyg)
    callbacks = [TCGNNAccelerator()] if resume_with else []
    trainer(tmp_path, max_epochs=4, callbacks=callbacks).fit(
        second, datamodule=FullGraph(graph, translate=False), ckpt_path=tmp_path / "half.ckpt"
    )
    torch.testing.assert_close(second.state_dict(), whole.state_dict(), rtol=1e-4, atol=1e-5)


def test_setup_twice_and_teardown_twice_change_nothing(pyg):
    callback, model = TCGNNAccelerator(), classifier(pyg)
    for stage in ("fit", "validate"):
        callback.setup(None, model, stage)
        assert layer_modules(model) == ["torch_tcgnn", "torch_tcgnn"]
    for _ in range(2):
        callback.teardown(None, model, "fit")
        assert layer_modules(model) == ["torch_geometric", "torch_geometric"]


def test_a_second_model_gives_the_first_its_layers_back(pyg):
    callback, first, second = TCGNNAccelerator(), classifier(pyg), classifier(pyg)
    callback.setup(None, first, "fit")
    callback.setup(None, second, "fit")
    assert layer_modules(first) == ["torch_geometric", "torch_geometric"]
    assert layer_modules(second) == ["torch_tcgnn", "torch_tcgnn"]


def test_a_model_with_nothing_to_exchange_is_told(pyg):
    class Plain(LightningModule):
        def __init__(self):
            super().__init__()
            self.lin = torch.nn.Linear(2, 2)

    with pytest.warns(UserWarning, match="no layer of Plain was replaced"):
        TCGNNAccelerator().setup(None, Plain(), "fit")


# --- GraphStatsMonitor ---


@pytest.mark.parametrize("translate", [True, False])
def test_the_monitor_logs_the_figures_of_the_graph(graph, tmp_path, translate):
    tcg.cache.clear()
    run = trainer(tmp_path, max_epochs=3, callbacks=[GraphStatsMonitor()])
    run.fit(classifier(), datamodule=FullGraph(graph, translate=translate))
    logged = {name: float(value) for name, value in run.callback_metrics.items() if name.startswith("graph/")}
    stats = tcg.TCGraph.from_edge_index(graph.edge_index, NODES).stats
    for name in ("reuse", "tc_fraction", "blocks", "density"):
        assert logged[f"graph/{name}"] == pytest.approx(getattr(stats, name))
    assert logged["graph/build_ms"] > 0
    assert logged["graph/bytes"] >= stats.num_bytes
    # In the last epoch's one training batch two layers look their graph up and build nothing.
    assert logged["graph/cache_misses"] == 0
    assert logged["graph/cache_hits"] == (0 if translate else 2)
    assert (logged["graph/cache_bytes"] > 0) is not translate


def test_the_monitor_averages_over_the_batches_it_measures(graph, tmp_path):
    ring = torch.stack([torch.arange(NODES), (torch.arange(NODES) + 1) % NODES])
    batches = [
        NodeBatch(x=graph.x, graph=edges, y=graph.y, train_mask=graph.train_mask)
        for edges in (graph.edge_index, ring, ring)
    ]
    blocks = [tcg.TCGraph.from_edge_index(batch.graph, NODES).stats.blocks for batch in batches]
    for every, expected in ((1, sum(blocks) / 3), (2, (blocks[0] + blocks[2]) / 2)):
        run = trainer(tmp_path, max_epochs=1, callbacks=[GraphStatsMonitor(every_n_batches=every)])
        run.fit(classifier(), train_dataloaders=DataLoader(batches, batch_size=None))
        assert float(run.callback_metrics["graph/blocks"]) == pytest.approx(expected)


def test_the_monitor_says_when_a_batch_holds_no_graph(tmp_path):
    class Plain(LightningModule):
        def __init__(self):
            super().__init__()
            self.lin = torch.nn.Linear(2, 1)

        def training_step(self, batch, batch_idx):
            return self.lin(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with pytest.warns(UserWarning, match="found no graph, edge_index or adj_t in a batch of type Tensor"):
        trainer(tmp_path, max_epochs=1, callbacks=[GraphStatsMonitor()]).fit(Plain(), DataLoader(torch.ones(1, 2)))


# --- the extra ---


@pytest.mark.parametrize("missing", ["lightning", "torchmetrics"])
def test_a_missing_extra_names_the_pip_command(monkeypatch, missing):
    for name in [n for n in sys.modules if n.split(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "torch_tcgnn.lightning")
    with pytest.raises(ImportError, match=r"pip install 'torch-tcgnn\[lightning\]"):
        importlib.import_module("torch_tcgnn.lightning")
