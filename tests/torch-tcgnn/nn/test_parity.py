"""Each layer against PyG's of the same name: parameters, outputs, gradients, on graphs with loops and duplicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_tcgnn.nn as ours
from torch import Tensor

pyg = pytest.importorskip("torch_geometric.nn")

N, M, E, F, D = 12, 7, 60, 6, 3
RNG = torch.Generator().manual_seed(0)
GRAPH = torch.randint(0, N, (2, E), generator=RNG)
GRAPH[:, 5] = GRAPH[:, 6]  # a duplicate
GRAPH[:, 0] = 1  # a loop; node N - 1 loses its edges
GRAPH[:, (GRAPH == N - 1).any(0)] = 2  # … and node 2 has several loops
BIPARTITE = torch.stack([torch.randint(0, N, (E,), generator=RNG), torch.randint(0, M - 1, (E,), generator=RNG)])
ONE_LOOP_A_NODE = GRAPH[:, (GRAPH[0] != GRAPH[1]) | (torch.arange(E) == 0)]

X, XT, XB = (torch.randn(s, generator=RNG) for s in ((N, F), (M, 5), (2, N, F)))
WEIGHT, EDGE, EDGE_F = torch.rand(E, generator=RNG), torch.randn(E, D, generator=RNG), torch.randn(E, F, generator=RNG)
LOOPS_WEIGHT = WEIGHT[: ONE_LOOP_A_NODE.shape[1]]


def mlp(out: int = 4) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(F, 5), torch.nn.ReLU(), torch.nn.Linear(5, out))


Case = tuple[str, Callable[[Any], torch.nn.Module], tuple]


def cases() -> list[Case]:
    found: list[Case] = [
        ("GCN", lambda m: m.GCNConv(F, 4), (X, GRAPH)),
        ("GCN wide", lambda m: m.GCNConv(F, 9, bias=False), (X, GRAPH)),
        ("GCN weighted", lambda m: m.GCNConv(F, 4), (X, ONE_LOOP_A_NODE, LOOPS_WEIGHT)),
        ("GCN improved", lambda m: m.GCNConv(F, 4, improved=True), (X, ONE_LOOP_A_NODE, LOOPS_WEIGHT)),
        ("GCN improved, unweighted", lambda m: m.GCNConv(F, 4, improved=True), (X, GRAPH)),
        ("GCN without loops", lambda m: m.GCNConv(F, 4, add_self_loops=False), (X, GRAPH, WEIGHT)),
        ("GCN not normalized", lambda m: m.GCNConv(F, 4, normalize=False), (X, GRAPH, WEIGHT)),
        ("GCN reversed", lambda m: m.GCNConv(F, 4, flow="target_to_source"), (X, GRAPH)),
        ("GCN max", lambda m: m.GCNConv(F, 4, aggr="max"), (X, GRAPH)),
        ("GCN batch", lambda m: m.GCNConv(F, 4), (XB, GRAPH)),
        ("GCN lazy", lambda m: m.GCNConv(-1, 4), (X, GRAPH)),
        ("GCN cached", lambda m: m.GCNConv(F, 4, cached=True), (X, GRAPH)),
        ("GIN", lambda m: m.GINConv(mlp(), eps=0.3, train_eps=True), (X, GRAPH)),
        ("GIN mean", lambda m: m.GINConv(mlp(), aggr="mean"), (XB, GRAPH)),
        ("GIN bipartite", lambda m: m.GINConv(mlp()), ((X, None), BIPARTITE, (N, M))),
        ("GINE", lambda m: m.GINEConv(mlp(), edge_dim=D), (X, GRAPH, EDGE)),
        ("GINE max, batch", lambda m: m.GINEConv(mlp(), aggr="max", train_eps=True), (XB, GRAPH, EDGE_F)),
        ("SAGE", lambda m: m.SAGEConv(F, 4), (X, GRAPH)),
        ("SAGE list", lambda m: m.SAGEConv(F, 4, aggr=["mean", "max", "add"], project=True), (X, GRAPH)),
        ("SAGE unit", lambda m: m.SAGEConv(F, 9, aggr="min", normalize=True, bias=False), (XB, GRAPH)),
        ("SAGE bipartite", lambda m: m.SAGEConv((F, 5), 4), ((X, XT), BIPARTITE)),
        ("SAGE lazy", lambda m: m.SAGEConv((-1, -1), 4, aggr="max"), ((X, XT), BIPARTITE)),
        ("SAGE rootless", lambda m: m.SAGEConv((F, 5), 4, root_weight=False), ((X, None), BIPARTITE, (N, M))),
        ("GraphConv", lambda m: m.GraphConv(F, 4), (X, GRAPH, WEIGHT)),
        ("GraphConv mean", lambda m: m.GraphConv(F, 4, aggr="mean"), (X, GRAPH, WEIGHT)),
        ("GraphConv max", lambda m: m.GraphConv(F, 4, aggr="max"), (XB, GRAPH, WEIGHT)),
        ("GraphConv bipartite", lambda m: m.GraphConv((F, 5), 14), ((X, XT), BIPARTITE, WEIGHT)),
        ("SG", lambda m: m.SGConv(F, 4, K=3), (X, ONE_LOOP_A_NODE, LOOPS_WEIGHT)),
        ("SG without loops", lambda m: m.SGConv(F, 8, K=2, add_self_loops=False), (XB, GRAPH)),
        ("SG cached", lambda m: m.SGConv(F, 4, K=2, cached=True), (X, GRAPH)),
        ("AGNN", lambda m: m.AGNNConv(), (X, GRAPH)),
        ("AGNN fixed", lambda m: m.AGNNConv(requires_grad=False, add_self_loops=False), (X, GRAPH)),
        ("GAT source only", lambda m: m.GATConv((F, F), 4, heads=2), ((X, None), BIPARTITE, None, (N, M))),
        ("GAT lazy", lambda m: m.GATConv((-1, -1), 4, heads=2), ((X, XT), BIPARTITE)),
        ("GATv2 shared", lambda m: m.GATv2Conv(F, 4, heads=2, share_weights=True), (X, GRAPH)),
        ("Transformer", lambda m: m.TransformerConv(F, 4), (X, GRAPH)),
        ("Transformer gated", lambda m: m.TransformerConv(F, 4, heads=3, concat=False, beta=True), (X, GRAPH)),
        ("Transformer edges", lambda m: m.TransformerConv(F, 4, heads=2, beta=True, edge_dim=D), (X, GRAPH, EDGE)),
        ("Transformer reversed", lambda m: m.TransformerConv(F, 4, flow="target_to_source"), (X, GRAPH)),
        ("Transformer rootless", lambda m: m.TransformerConv(F, 4, root_weight=False), (X, GRAPH)),
        ("Transformer bipartite", lambda m: m.TransformerConv((F, 5), 4, heads=2), ((X, XT), BIPARTITE)),
    ]
    for layer in ("GATConv", "GATv2Conv"):

        def make(options: dict, size: Any = F, layer: str = layer) -> Callable[[Any], torch.nn.Module]:
            return lambda m: getattr(m, layer)(size, 4, **options)

        found += [
            (f"{layer} {name}", make({**options, "edge_dim": D}), (X, GRAPH, EDGE))
            for name, options in (
                ("edges", {"heads": 2}),
                ("edges, largest", {"fill_value": "max", "bias": False}),
                ("edges, product", {"fill_value": "mul"}),
                ("edges, number", {"fill_value": 0.5}),
                ("edges, tensor", {"fill_value": torch.tensor([1.0, -1.0, 0.5])}),
                ("edges, no loops", {"add_self_loops": False}),
                ("edges, reversed", {"flow": "target_to_source", "heads": 2}),
            )
        ]
        found += [
            (f"{layer}", make({}), (X, GRAPH)),
            (f"{layer} heads", make({"heads": 3, "negative_slope": 0.1}), (X, GRAPH)),
            (f"{layer} mean, residual", make({"heads": 2, "concat": False, "residual": True}), (X, GRAPH)),
            (f"{layer} bipartite", make({"heads": 2, "residual": True}, (F, 5)), ((X, XT), BIPARTITE)),
        ]
    return found


def with_gradients(inputs: tuple) -> tuple[list, list[Tensor]]:
    leaves: list[Tensor] = []

    def ready(item: Any) -> Any:
        if isinstance(item, Tensor) and item.is_floating_point():
            leaves.append(item.clone().requires_grad_())
            return leaves[-1]
        return tuple(map(ready, item)) if isinstance(item, tuple) else item

    return [ready(item) for item in inputs], leaves


def same_layers(make: Callable[[Any], torch.nn.Module], inputs: tuple) -> tuple[torch.nn.Module, torch.nn.Module]:
    """PyG's layer and ours from the same seed, sizes settled."""
    layers = []
    for module in (pyg, ours):
        torch.manual_seed(1)
        layers.append(make(module))
        layers[-1](*inputs)
    return layers[0], layers[1]


@pytest.mark.parametrize("make, inputs", [case[1:] for case in cases()], ids=[case[0] for case in cases()])
def test_outputs_and_gradients_equal_pygs(make, inputs):
    theirs, mine = same_layers(make, inputs)
    assert repr(mine) == repr(theirs) or "GINE" in repr(mine)
    theirs_in, theirs_leaves = with_gradients(inputs)
    mine_in, mine_leaves = with_gradients(inputs)
    expected, got = theirs(*theirs_in), mine(*mine_in)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    seed = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    expected.backward(seed)
    got.backward(seed)
    for a, b in zip([*mine_leaves, *mine.parameters()], [*theirs_leaves, *theirs.parameters()]):
        assert (a.grad is None) == (b.grad is None)
        if b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make, inputs", [case[1:] for case in cases()], ids=[case[0] for case in cases()])
def test_same_seed_gives_pygs_state_dict_and_it_loads_both_ways(make, inputs):
    theirs, mine = same_layers(make, inputs)
    assert {k: v.shape for k, v in mine.state_dict().items()} == {k: v.shape for k, v in theirs.state_dict().items()}
    for key, value in theirs.state_dict().items():
        assert torch.equal(mine.state_dict()[key], value), key
    fresh_mine, fresh_theirs = make(ours), make(pyg)
    fresh_mine.load_state_dict(theirs.state_dict(), strict=True)
    fresh_theirs.load_state_dict(mine.state_dict(), strict=True)
    torch.testing.assert_close(fresh_mine(*inputs), fresh_theirs(*inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
@pytest.mark.parametrize(
    "make",
    [
        lambda m: m.GCNConv(F, 4),
        lambda m: m.GCNConv(F, 4, improved=True),
        lambda m: m.GCNConv(F, 4, normalize=False),
        lambda m: m.SGConv(F, 4, K=2),
        lambda m: m.SAGEConv(F, 4),
        lambda m: m.GINConv(mlp()),
        lambda m: m.GraphConv(F, 4),
        lambda m: m.GATConv(F, 4, heads=2),
        lambda m: m.AGNNConv(),
        lambda m: m.TransformerConv(F, 4),
    ],
    ids=["GCN", "GCN improved", "GCN not normalized", "SG", "SAGE", "GIN", "GraphConv", "GAT", "AGNN", "Transformer"],
)
@pytest.mark.parametrize("values", ["ones", "random"])
@pytest.mark.filterwarnings("ignore:Converting sparse tensor", "ignore:Sparse")
def test_transposed_sparse_adjacency_equals_pygs(make, layout, values):
    weight = torch.ones(E) if values == "ones" else WEIGHT
    adj_t = torch.sparse_coo_tensor(GRAPH.flip(0), weight, (N, N)).coalesce()  # duplicates are summed
    adj_t = adj_t if layout == torch.sparse_coo else adj_t.to_sparse(layout=layout)
    theirs, mine = same_layers(make, (X, GRAPH))
    torch.testing.assert_close(mine(X, adj_t), theirs(X, adj_t), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "TransformerConv"])
@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_attention_weights_equal_pygs(name, flow):
    theirs, mine = same_layers(lambda m: getattr(m, name)(F, 4, heads=2, flow=flow), (X, GRAPH))
    expected, (edges, alpha) = theirs(X, GRAPH, return_attention_weights=True)
    out, (my_edges, my_alpha) = mine(X, GRAPH, return_attention_weights=True)
    assert torch.equal(my_edges, edges)
    torch.testing.assert_close(my_alpha, alpha, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


def test_cached_layers_keep_their_first_graph_as_pygs_do():
    for make in (lambda m: m.GCNConv(F, 4, cached=True), lambda m: m.SGConv(F, 4, cached=True)):
        theirs, mine = same_layers(make, (X, GRAPH))
        torch.testing.assert_close(mine(X, GRAPH[:, :20]), theirs(X, GRAPH[:, :20]), rtol=1e-5, atol=1e-6)
        mine.reset_parameters()
        theirs.load_state_dict(mine.state_dict())
        if hasattr(theirs, "_cached_x"):
            theirs._cached_x = None
        theirs._cached_edge_index = None
        torch.testing.assert_close(mine(X, GRAPH[:, :20]), theirs(X, GRAPH[:, :20]), rtol=1e-5, atol=1e-6)


def test_double_precision_stays_double():
    theirs, mine = same_layers(lambda m: m.GCNConv(F, 4).double(), (X.double(), GRAPH))
    torch.testing.assert_close(mine(X.double(), GRAPH), theirs(X.double(), GRAPH), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_near_float(dtype):
    conv = ours.GCNConv(F, 4)
    expected = conv(X, GRAPH)
    out = conv.to(dtype)(X.to(dtype), GRAPH)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, rtol=3e-2, atol=3e-2)
