"""`accelerate`, `restore`, `report`: PyG models on our layers, and back."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn import data

pyg = pytest.importorskip("torch_geometric.nn")

N, F = 40, 8
RNG = torch.Generator().manual_seed(0)
EDGES = torch.randint(0, N, (2, 200), generator=RNG)
X = torch.randn(N, F, generator=RNG)
MODELS = {
    "GCN": lambda f, c: pyg.GCN(f, 16, 2, c),
    "GAT": lambda f, c: pyg.GAT(f, 16, 2, c, heads=2),
    "GATv2": lambda f, c: pyg.GAT(f, 16, 2, c, v2=True),
    "GraphSAGE": lambda f, c: pyg.GraphSAGE(f, 16, 2, c),
    "GIN": lambda f, c: pyg.GIN(f, 16, 2, c, norm="batch_norm"),
    "PNA": lambda f, c: pyg.PNA(
        f, 16, 2, c, aggregators=["mean", "max"], scalers=["identity"], deg=torch.tensor([1, 2, 3])
    ),
}


def model(name: str = "GAT", features: int = F, classes: int = 4) -> torch.nn.Module:
    torch.manual_seed(0)
    return MODELS[name](features, classes)


def accelerated(name: str = "GAT", **options) -> torch.nn.Module:
    return tcg.accelerate(model(name), **options)


@pytest.mark.filterwarnings("ignore:accelerate")
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients_equal_the_original(name):
    plain, fast = model(name), accelerated(name, verify=True)
    plain(X, EDGES).square().sum().backward()
    fast(X, EDGES).square().sum().backward()
    for a, b in zip(fast.parameters(), plain.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fast.eval()(X, EDGES), plain.eval()(X, EDGES), rtol=1e-5, atol=1e-5)


@pytest.mark.data
@pytest.mark.filterwarnings("ignore:accelerate")
@pytest.mark.parametrize("name", MODELS)
def test_outputs_on_cora(name, data_root):
    cora = data.planetoid("cora", data_root)
    plain = model(name, cora.x.shape[1], 7).eval()
    expected = plain(cora.x, cora.edge_index)
    got = tcg.accelerate(plain, verify=True)(cora.x, cora.edge_index)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_parameters_names_and_hooks_stay():
    m = model()
    seen = []
    handle = m.convs[0].register_forward_hook(lambda *_: seen.append("hook"))
    before = [(name, id(p)) for name, p in m.named_parameters()], list(m.state_dict())
    assert tcg.accelerate(m) is m
    assert isinstance(m.convs[0], tcg.nn.GATConv)
    assert ([(name, id(p)) for name, p in m.named_parameters()], list(m.state_dict())) == before
    m(X, EDGES)
    assert seen == ["hook"]
    handle.remove()
    m(X, EDGES)
    assert seen == ["hook"]


def test_optimizer_made_before_trains_the_accelerated_model():
    m, twin = model("GCN"), model("GCN")
    optimizers = [torch.optim.SGD(k.parameters(), lr=0.1) for k in (m, twin)]
    tcg.accelerate(m)
    for _ in range(3):
        for k, optimizer in zip((m, twin), optimizers):
            optimizer.zero_grad()
            k(X, EDGES).square().mean().backward()
            optimizer.step()
    for a, b in zip(m.parameters(), twin.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_user_network_inside_gin_is_not_reset():
    m = model("GIN")
    state = copy.deepcopy(m.state_dict())
    for key, value in tcg.accelerate(m).state_dict().items():
        assert torch.equal(value, state[key]), key


def test_accelerating_draws_no_random_numbers():
    m = model()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    tcg.accelerate(m)
    assert torch.equal(torch.rand(1), expected)


def test_restore_brings_the_same_layers_back():
    m = model("GIN")
    layers = list(m.convs)
    tcg.accelerate(m)
    m.eval()
    assert tcg.restore(m) is m
    assert all(a is b for a, b in zip(m.convs, layers))
    assert not m.convs[0].training
    m(X, EDGES)


def test_copies_are_whole_and_separate():
    m = accelerated()
    twin = copy.deepcopy(m)
    twin.convs[0].bias.data.add_(1.0)
    assert not torch.equal(twin.convs[0].bias, m.convs[0].bias)
    assert twin.convs[0].pyg.bias is twin.convs[0].bias
    plain = tcg.restore(copy.deepcopy(twin))
    assert type(plain.convs[0]) is pyg.GATConv
    torch.testing.assert_close(plain(X, EDGES), twin(X, EDGES), rtol=1e-5, atol=1e-5)


def test_pickle_and_checkpoint_round_trip():
    m = accelerated("GCN")
    again = pickle.loads(pickle.dumps(m))
    assert torch.equal(again(X, EDGES), m(X, EDGES))
    buffer = io.BytesIO()
    torch.save(m.state_dict(), buffer)
    buffer.seek(0)
    plain = model("GCN")
    plain.load_state_dict(torch.load(buffer, weights_only=True), strict=True)
    torch.testing.assert_close(plain(X, EDGES), m(X, EDGES), rtol=1e-5, atol=1e-5)


def test_copy_leaves_the_model_alone():
    m = model()
    other = tcg.accelerate(m, inplace=False)
    assert type(m.convs[0]) is pyg.GATConv
    assert isinstance(other.convs[0], tcg.nn.GATConv)


def test_change_of_type_reaches_both():
    m = accelerated("GCN").double()
    torch.testing.assert_close(m(X.double(), EDGES), tcg.restore(m)(X.double(), EDGES))


def test_one_layer_in_two_places_is_replaced_once():
    conv = pyg.GCNConv(F, F)
    m = tcg.accelerate(torch.nn.ModuleList([conv, conv]))
    assert m[0] is m[1]
    assert isinstance(m[0], tcg.nn.GCNConv)


def test_subclass_stays_and_the_report_says_why():
    class Mine(pyg.GCNConv):
        def message(self, x_j, edge_weight):
            return 2 * x_j

    m = tcg.accelerate(torch.nn.ModuleList([Mine(F, 4), pyg.GCNConv(F, 4), pyg.SAGEConv(F, 4, aggr="median")]))
    rows = list(tcg.report(m))
    assert [row.accelerated for row in rows] == [False, True, False]
    assert rows[0].note == "Mine is a subclass of GCNConv and may change how it passes messages"
    assert "MedianAggregation" in rows[2].note
    assert str(tcg.report(m)).splitlines()[1] == "1  GCNConv  accelerated"


def test_only_named_layers_are_replaced():
    m = accelerated(layers=["convs.1"])
    assert [row.accelerated for row in tcg.report(m)] == [False, True]
    assert all(row.accelerated for row in tcg.report(accelerated(layers=["GATConv"])))
    with pytest.raises(ValueError, match=r"layers: 'convs\.7' is neither the name nor the class of a PyG layer"):
        accelerated(layers=["convs.7"])
    with pytest.raises(NotImplementedError, match="no accelerated form of PNAConv"):
        accelerated("PNA", layers=["PNAConv"])


def test_model_without_supported_layers_warns():
    with pytest.warns(UserWarning, match=r"no layer of Linear was replaced; see report\(model\)"):
        tcg.accelerate(torch.nn.Linear(2, 2))


def test_verify_finds_a_wrong_layer():
    m = tcg.accelerate(model("GCN"), verify=True)
    m.convs[1].passing = tcg.accelerate(pyg.GCNConv(F, 4, aggr="max")).passing
    with pytest.raises(tcg.AccelerateError, match=r"GCNConv: output deviates from PyG's by .* allowed is 0\.0001"):
        m(X, EDGES)


def test_verify_leaves_training_state_and_statistics_alone():
    m, twin = accelerated("GIN", verify=True), model("GIN")
    m(X, EDGES)
    twin(X, EDGES)
    assert all(module.training for module in m.modules())
    for (name, a), b in zip(m.named_buffers(), twin.buffers()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)


def test_attention_weights_fall_back_with_one_warning():
    conv = pyg.GATConv(F, 4, heads=2)
    expected, (edges, alpha) = conv(X, EDGES, return_attention_weights=True)
    fast = tcg.accelerate(conv)
    with pytest.warns(UserWarning, match="return_attention_weights is set; this layer runs PyG's own forward"):
        out, (my_edges, my_alpha) = fast(X, EDGES, None, None, True)
    assert torch.equal(my_edges, edges)
    torch.testing.assert_close((out, my_alpha), (expected, alpha))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(X, EDGES, return_attention_weights=True)
        fast(X, EDGES)


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_a_translated_graph_falls_back_along_the_layers_flow(flow):
    torch.manual_seed(0)
    conv = pyg.GATConv(F, 4, flow=flow)
    expected, (edges, alpha) = conv(X, EDGES, return_attention_weights=True)
    graph = tcg.TCGraph.from_edge_index(EDGES, N, flow=flow)
    with pytest.warns(UserWarning, match="return_attention_weights"):
        out, (my_edges, my_alpha) = tcg.accelerate(conv)(X, graph, return_attention_weights=True)
    assert torch.equal(my_edges, edges)
    torch.testing.assert_close((out, my_alpha), (expected, alpha))


def test_explainer_falls_back():
    explain = pytest.importorskip("torch_geometric.explain.algorithm.utils")
    m, plain = accelerated("GCN").eval(), model("GCN").eval()
    mask = torch.linspace(-3, 3, EDGES.shape[1])
    for k in (m, plain):
        explain.set_masks(k, mask, EDGES)
    with pytest.warns(UserWarning, match="an explainer is attached"):
        got = m(X, EDGES)
    assert torch.equal(got, plain(X, EDGES))
    for k in (m, plain):
        explain.clear_masks(k)
    torch.testing.assert_close(m(X, EDGES), plain(X, EDGES), rtol=1e-5, atol=1e-5)
    assert list(m.state_dict()) == list(plain.state_dict())


def test_message_hook_falls_back():
    conv, seen = pyg.GCNConv(F, 4), []
    fast = tcg.accelerate(conv)
    conv.register_message_forward_hook(lambda *_: seen.append(1))
    with pytest.warns(UserWarning, match="a message-passing hook is registered"):
        fast(X, EDGES)
    assert seen == [1]


def test_decomposed_layers_fall_back():
    fast = tcg.accelerate(pyg.GCNConv(F, 4, decomposed_layers=2))
    with pytest.warns(UserWarning, match="decomposed_layers=2"):
        fast(X, EDGES)


def test_the_report_says_which_layers_run_pygs_own_forward_all_the_same():
    conv = pyg.GCNConv(F, 4, decomposed_layers=2)
    m = tcg.accelerate(torch.nn.ModuleList([conv, pyg.GCNConv(F, 4)]))
    m[1].pyg.register_message_forward_hook(lambda *_: None)
    assert str(tcg.report(m)).splitlines() == [
        "0  GCNConv  accelerated: runs PyG's own forward (decomposed_layers=2)",
        "1  GCNConv  accelerated: runs PyG's own forward (a message-passing hook is registered)",
    ]


OPTIONS = {
    "AGNNConv": (lambda: pyg.AGNNConv(), {"add_self_loops": False}),
    "GATConv": (
        lambda: pyg.GATConv(F, 4, heads=2), {"negative_slope": 0.9, "add_self_loops": False, "dropout": 0.3}
    ),
    "GATConv, edges": (lambda: pyg.GATConv(F, 4, edge_dim=1), {"fill_value": 3.0}),
    "GATv2Conv": (lambda: pyg.GATv2Conv(F, 4), {"negative_slope": 0.9, "add_self_loops": False}),
    "GCNConv": (lambda: pyg.GCNConv(F, 4), {"add_self_loops": False}),
    "SAGEConv": (lambda: pyg.SAGEConv(F, 4), {"normalize": True}),
    "SGConv": (lambda: pyg.SGConv(F, 4), {"K": 2, "add_self_loops": False}),
    "TransformerConv": (lambda: pyg.TransformerConv(F, 4, heads=2), {"concat": False, "dropout": 0.3}),
}  # fmt: skip


@pytest.mark.parametrize("make, options", OPTIONS.values(), ids=OPTIONS)
def test_options_set_while_accelerated_are_there_after_restoring(make, options):
    torch.manual_seed(0)
    conv = make()
    given = (X, EDGES, torch.ones(EDGES.shape[1], 1)) if getattr(conv, "edge_dim", None) else (X, EDGES)
    if "concat" in options:
        conv.lin_skip, conv.root_weight = None, False  # its width is that of the heads side by side
    before = vars(conv).copy()
    fast = tcg.accelerate(conv).eval()
    tcg.restore(fast)
    assert all(vars(conv)[name] is value for name, value in before.items() if name != "training"), "nothing was set"
    plain = conv(*given)
    for name, value in options.items():
        setattr(fast, name, value)
    out = fast(*given)
    assert out.shape != plain.shape or not torch.allclose(out, plain, atol=1e-3), "the options matter"
    assert tcg.restore(fast) is conv
    assert {name: getattr(conv, name) for name in options} == options
    torch.testing.assert_close(conv(*given), out, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_options_set_while_accelerated_hold_where_pygs_forward_runs(compiled):
    torch.manual_seed(0)
    fast = tcg.accelerate(pyg.GATConv(F, 4)).eval()
    run = torch.compile(fast, backend="aot_eager") if compiled else fast
    for slope in (0.2, 0.9):
        fast.negative_slope = slope
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "GATConv: return_attention_weights")
            weighed, _ = run(X, EDGES, return_attention_weights=True)
        torch.testing.assert_close(weighed, fast(X, EDGES), rtol=1e-5, atol=1e-5)


def test_forward_hooks_run_once_on_fall_back():
    conv, seen = pyg.GATConv(F, 4), []
    conv.register_forward_hook(lambda *_: seen.append(1))
    with pytest.warns(UserWarning, match="return_attention_weights"):
        tcg.accelerate(conv)(X, EDGES, return_attention_weights=True)
    assert seen == [1]


def test_precision_is_set_and_reported():
    m = accelerated("GCN", precision="tf32")
    assert m.convs[0].passing.precision == "tf32"
    assert str(tcg.report(m)).splitlines()[0] == "convs.0  GCNConv  accelerated: precision=tf32"
    assert tcg.accelerate(m).convs[0].passing.precision is None, "accelerating again sets the options anew"
    with pytest.raises(ValueError, match="precision must be one of 'ieee', 'tf32', got 'half'"):
        accelerated(precision="half")


def test_lazy_model_settles_when_accelerated():
    conv = tcg.accelerate(pyg.GCNConv(-1, 4), verify=True)
    assert conv(X, EDGES).shape == (N, 4)
    assert tcg.restore(conv).in_channels == -1
    assert conv.pyg.lin.weight.shape == (4, F)


def test_accelerated_layer_compiles_whole():
    layer = tcg.accelerate(pyg.GCNConv(F, 4))
    expected = layer(X, EDGES)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(X, EDGES), expected, rtol=1e-5, atol=1e-6)


def test_heterogeneous_model():
    back = pyg.GATConv((F, F), 4, add_self_loops=False)
    m = pyg.HeteroConv({("a", "to", "b"): pyg.SAGEConv((F, F), 4), ("b", "to", "a"): back})
    x = {"a": X, "b": X[:9]}
    edges = {("a", "to", "b"): EDGES % torch.tensor([[N], [9]]), ("b", "to", "a"): EDGES % torch.tensor([[9], [N]])}
    expected = m(x, edges)
    got = tcg.accelerate(m, verify=True)(x, edges)
    assert len(tcg.report(m)) == 2
    assert all(row.accelerated for row in tcg.report(m))
    for key in expected:
        torch.testing.assert_close(got[key], expected[key], rtol=1e-5, atol=1e-5)


def test_a_class_of_the_users_may_carry_a_layers_name():
    from torch_geometric import nn as pyg

    class GCNConv(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = pyg.GCNConv(4, 4)

    model = tcg.accelerate(torch.nn.Sequential(GCNConv()))
    assert not isinstance(model[0].inner, pyg.GCNConv)
