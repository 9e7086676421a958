"""Accelerated models in the hands of PyTorch's and PyG's other tools: parametrisations, copies, tracers, exporters."""

from __future__ import annotations

import copy
import re

import pytest
import torch
import torch.nn.utils.parametrize as parametrize
import torch_tcgnn as tcg
from torch.nn.utils import parametrizations, prune

pyg = pytest.importorskip("torch_geometric.nn")

N, F = 20, 8
RANDOM = torch.Generator().manual_seed(0)
EDGES = torch.randint(0, N, (2, 60), generator=RANDOM)
X = torch.randn(N, F, generator=RANDOM)


class Half(torch.nn.Module):
    """The simplest parametrisation."""

    def forward(self, value):
        return value / 2


def gcn() -> torch.nn.Module:
    torch.manual_seed(0)
    return pyg.GCN(F, 16, 2, 4)


def gat() -> torch.nn.Module:
    torch.manual_seed(0)
    return pyg.GAT(F, 16, 2, 4, heads=2)


CHANGES = {
    "parametrized bias": (gcn, lambda conv: parametrize.register_parametrization(conv, "bias", Half())),
    "parametrized map": (gcn, lambda conv: parametrize.register_parametrization(conv.lin, "weight", Half())),
    "parametrized attention": (gat, lambda conv: parametrize.register_parametrization(conv, "att_src", Half())),
    "weight norm": (gat, lambda conv: parametrizations.weight_norm(conv, "att_src")),
    "hooked weight norm": (gat, lambda conv: torch.nn.utils.weight_norm(conv, "att_src")),
    "pruned": (gcn, lambda conv: prune.l1_unstructured(conv, "bias", 0.5)),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("first", [True, False], ids=["changed first", "accelerated first"])
@pytest.mark.parametrize("make, change", CHANGES.values(), ids=CHANGES)
def test_changed_parameters_survive_acceleration_and_restoring(make, change, first):
    plain, model = make().eval(), make().eval()
    change(plain.convs[0])
    if first:
        change(model.convs[0])
    tcg.accelerate(model, verify=True)
    if not first:
        change(model.convs[0])
    assert all(row.accelerated for row in tcg.report(model))
    expected = plain(X, EDGES)
    torch.testing.assert_close(model(X, EDGES), expected, rtol=1e-5, atol=1e-5)
    assert tcg.restore(model) is model
    torch.testing.assert_close(model(X, EDGES), expected, rtol=1e-5, atol=1e-5)
    assert isinstance(model.convs[0], type(make().convs[0]))
    assert list(model.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize("make, change", [CHANGES["parametrized bias"], CHANGES["weight norm"]])
def test_a_change_is_there_after_restoring_a_model_that_was_not_called(make, change):
    plain, model = make().eval(), tcg.accelerate(make().eval())
    change(plain.convs[0])
    change(model.convs[0])
    torch.testing.assert_close(tcg.restore(model)(X, EDGES), plain(X, EDGES), rtol=1e-5, atol=1e-5)


def test_a_parametrisation_taken_off_while_accelerated_is_off_after_restoring():
    model = gcn().eval()
    parametrize.register_parametrization(model.convs[0], "bias", Half())
    tcg.accelerate(model)
    parametrize.remove_parametrizations(model.convs[0], "bias")
    tcg.restore(model)
    assert type(model.convs[0]) is pyg.GCNConv
    torch.testing.assert_close(model(X, EDGES), gcn().eval()(X, EDGES), rtol=1e-5, atol=1e-5)


def test_a_parametrised_layer_falls_back_to_pyg():
    conv = pyg.GATConv(F, 4)
    fast = tcg.accelerate(conv)
    parametrize.register_parametrization(fast, "att_src", Half())
    with pytest.warns(UserWarning, match="return_attention_weights"):
        out, _ = fast(X, EDGES, return_attention_weights=True)
    torch.testing.assert_close(out, fast(X, EDGES), rtol=1e-5, atol=1e-5)


def test_either_copy_is_restored():
    model = tcg.accelerate(gcn())
    twin = copy.deepcopy(model)
    first, second = tcg.restore(model), tcg.restore(twin)
    assert type(first.convs[0]) is type(second.convs[0]) is pyg.GCNConv
    with torch.no_grad():
        second.convs[0].bias.add_(1.0)
    torch.testing.assert_close(first(X, EDGES), gcn()(X, EDGES))
    assert not torch.allclose(second(X, EDGES), first(X, EDGES))


def test_restoring_and_accelerating_again_change_nothing_more():
    model = gcn()
    layers = list(model.convs)
    assert tcg.restore(model) is model
    assert list(model.convs) == layers
    tcg.accelerate(tcg.accelerate(model))
    assert len(tcg.report(model)) == 2
    tcg.restore(tcg.restore(model))
    assert list(model.convs) == layers


class Net(torch.nn.Module):
    """Two layers for `to_hetero`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = pyg.SAGEConv((-1, -1), 16), pyg.SAGEConv((-1, -1), 4)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


METADATA = (["a", "b"], [("a", "to", "b"), ("b", "to", "a")])


def test_a_heterogeneous_model_is_accelerated_after_to_hetero():
    x = {"a": X, "b": X[:9]}
    edges = {("a", "to", "b"): EDGES % torch.tensor([[N], [9]]), ("b", "to", "a"): EDGES % torch.tensor([[9], [N]])}
    model = pyg.to_hetero(Net(), METADATA)
    expected = model(x, edges)
    got = tcg.accelerate(model)(x, edges)
    assert len(tcg.report(model)) == 4
    for kind in expected:
        torch.testing.assert_close(got[kind], expected[kind], rtol=1e-5, atol=1e-5)


def test_to_hetero_of_an_accelerated_model_says_the_order():
    model = tcg.accelerate(Net())
    with pytest.raises(TypeError, match=r"cannot trace the accelerated SAGEConv: transform the model first"):
        pyg.to_hetero(model, METADATA)
    assert all(row.accelerated for row in tcg.report(model)), "and the model is as it was"


@pytest.mark.parametrize("model", [lambda: pyg.GCNConv(F, 4), gcn], ids=["layer", "model"])
def test_torchscript_says_what_to_do(model):
    fast = tcg.accelerate(model())
    with pytest.raises(TypeError, match=r"TorchScript cannot compile the accelerated GCNConv: script restore\(model\)"):
        torch.jit.script(fast)
    with pytest.raises(RuntimeError, match=r"torch.jit.trace would keep this graph as a constant: use torch.export"):
        torch.jit.trace(fast.eval(), (X, EDGES))


@pytest.mark.parametrize("make", [gcn, gat])
def test_an_accelerated_model_compiles_whole(make):
    model = tcg.accelerate(make()).eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(X, EDGES), model(X, EDGES), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [gcn, gat])
def test_an_exported_model_takes_graphs_of_other_sizes(make):
    model = tcg.accelerate(make()).eval()
    nodes, edges = torch.export.Dim("nodes", min=2, max=2**31 - 2), torch.export.Dim("edges", min=2)
    program = torch.export.export(model, (X, EDGES), dynamic_shapes=({0: nodes}, {1: edges}), strict=False)
    larger, more = torch.randn(33, F), torch.randint(0, 33, (2, 99))
    torch.testing.assert_close(program.module()(larger, more), model(larger, more), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "layers, error, words",
    [
        ("convs.0", TypeError, "layers must be a collection of names such as ['convs.0'], got 'convs.0'"),
        (3, TypeError, "layers must be a collection of names such as ['convs.0'], got 3"),
        (["convs"], ValueError, "layers: 'convs' is neither the name nor the class of a PyG layer; there are convs.0"),
        ([1], ValueError, "layers: 1 is neither the name nor the class of a PyG layer; there are convs.0 (GCNConv)"),
        (["convs.0.lin"], ValueError, "'convs.0.lin' is neither the name nor the class of a PyG layer"),
    ],
)
def test_layers_that_match_nothing_are_named_with_those_that_are_there(layers, error, words):
    model = gcn()
    with pytest.raises(error, match=re.escape(words)):
        tcg.accelerate(model, layers=layers)
    assert not any(row.accelerated for row in tcg.report(model))


@pytest.mark.parametrize("call", [tcg.accelerate, tcg.restore, tcg.report])
@pytest.mark.parametrize("model", [None, "model", [gcn]])
def test_a_model_is_a_module(call, model):
    with pytest.raises(TypeError, match=f"model must be a torch.nn.Module, got {type(model).__name__}"):
        call(model)


@pytest.mark.parametrize("layer", [pyg.GATConv, pyg.GATv2Conv, pyg.TransformerConv], ids=lambda layer: layer.__name__)
def test_a_size_of_edge_features_that_the_first_input_tells(layer):
    attr, outs = torch.randn(60, 3, generator=torch.Generator().manual_seed(1)), []
    for accelerate in (False, True):
        torch.manual_seed(0)
        conv = layer(F, 2, heads=2, edge_dim=-1)
        outs.append((tcg.accelerate(conv) if accelerate else conv)(X, EDGES, attr))
    torch.testing.assert_close(outs[1], outs[0], rtol=1e-5, atol=1e-5)
