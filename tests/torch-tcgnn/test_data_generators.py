"""Generated graphs: exact sizes, simple edges, the promised shape, the same graph from the same seed."""

import pytest
import torch
from torch_tcgnn import data


def assert_simple(graph: data.GraphData, *, symmetric: bool = True) -> None:
    """No loops, no duplicates, sorted by target then source; and its own mirror image where promised."""
    source, target = graph.edge_index
    key = target * graph.num_nodes + source
    assert bool((key.diff() > 0).all())
    assert bool((source != target).all())
    if symmetric:
        assert torch.equal(key, (source * graph.num_nodes + target).sort()[0])


def degrees(graph: data.GraphData) -> torch.Tensor:
    return torch.bincount(graph.edge_index[1], minlength=graph.num_nodes)


SCALED = {"reddit": 0.005, "protein": 0.01, "products": 0.001}


@pytest.mark.parametrize("name", data.PRESETS)
def test_presets_have_their_size_at_any_scale(name):
    preset, scale = data.PRESETS[name], SCALED.get(name, 0.02)
    graph = data.generate(name, scale=scale)
    directed = name == "web-BerkStan"
    assert graph.name == f"{name}-like"
    assert graph.num_nodes == round(preset.num_nodes * scale)
    edges = round(preset.num_edges * scale)
    assert graph.num_edges == (edges if directed else edges // 2 * 2)
    assert_simple(graph, symmetric=not directed)
    assert graph.num_graphs == max(round(preset.graphs * scale), 1)


def test_preset_at_scale_one_has_the_published_size():
    graph = data.generate("ppi")
    assert (graph.num_nodes, graph.num_edges) == (56_944, 818_716)
    assert 350 < int(degrees(graph).max()) < 1_400


BUILDERS = [
    lambda seed: data.rmat(300, 2_000, seed=seed),
    lambda seed: data.rmat(300, 2_000, symmetric=True, seed=seed),
    lambda seed: data.power_law(300, 2_000, seed=seed),
    lambda seed: data.sbm([100, 60, 40], 0.2, 0.01, seed=seed),
    lambda seed: data.grid_road(300, 800, seed=seed),
    lambda seed: data.molecule_batch(20, 15, 2.2, seed=seed),
    lambda seed: data.generate("arxiv", seed, 0.01),
]


@pytest.mark.parametrize("build", BUILDERS)
def test_seed_decides_the_graph(build):
    torch.manual_seed(1)
    first = build(0).edge_index
    torch.manual_seed(2)  # the global generator plays no part
    assert torch.equal(first, build(0).edge_index)
    assert not torch.equal(first, build(1).edge_index)


def test_rmat_prefers_the_first_quadrant():
    graph = data.rmat(1_000, 8_000, seed=3)
    assert_simple(graph, symmetric=False)
    assert graph.num_edges == 8_000
    low = (graph.edge_index < 512).all(0).float().mean()
    assert low > 0.5  # a quarter would be uniform


def test_rmat_symmetric_drops_an_odd_entry():
    graph = data.rmat(100, 301, symmetric=True)
    assert graph.num_edges == 300
    assert_simple(graph)


def test_power_law_has_hubs_and_a_small_exponent_has_larger_ones():
    hubs = [int(degrees(data.power_law(20_000, 100_000, exponent)).max()) for exponent in (2.2, 3.0, 6.0)]
    assert hubs[0] > 2 * hubs[1] > 4 * hubs[2]
    assert hubs[2] > 10


def test_power_law_hub_is_near_what_was_asked_for():
    for wanted in (50, 400):
        hub = int(degrees(data.power_law(20_000, 200_000, max_degree=wanted)).max())
        assert 0.6 * wanted < hub < 1.6 * wanted


def test_sbm_joins_exactly_the_asked_share_of_pairs():
    graph = data.sbm([100, 60, 40], 0.25, 0.01, seed=1)
    assert_simple(graph)
    same = graph.y[graph.edge_index[0]] == graph.y[graph.edge_index[1]]
    within = 100 * 99 // 2 + 60 * 59 // 2 + 40 * 39 // 2
    between = 100 * 60 + 100 * 40 + 60 * 40
    assert int(same.sum()) == 2 * round(0.25 * within)
    assert int((~same).sum()) == 2 * round(0.01 * between)
    assert torch.bincount(graph.y).tolist() == [100, 60, 40]


def test_sbm_at_its_limits_is_cliques_or_a_complete_multipartite_graph():
    cliques, multipartite = data.sbm([4, 3, 1], 1.0, 0.0), data.sbm([4, 3, 1], 0.0, 1.0)
    same = cliques.y[:, None] == cliques.y[None, :]
    dense = torch.zeros(2, 8, 8, dtype=torch.bool)
    for k, graph in enumerate((cliques, multipartite)):
        dense[k, graph.edge_index[0], graph.edge_index[1]] = True
    assert torch.equal(dense[0], same & ~torch.eye(8, dtype=torch.bool))
    assert torch.equal(dense[1], ~same)


@pytest.mark.parametrize("num_nodes", [1, 2, 10, 100, 103])
def test_whole_grid_joins_row_and_column_neighbours(num_nodes):
    width = max(round(num_nodes**0.5), 1)
    wanted = {(u, u + 1) for u in range(num_nodes - 1) if (u + 1) % width}
    wanted |= {(u, u + width) for u in range(num_nodes - width)}
    graph = data.grid_road(num_nodes, 2 * len(wanted))
    assert {(u, v) for u, v in zip(*graph.edge_index.tolist()) if u < v} == wanted
    assert_simple(graph)


def test_molecules_are_connected_blocks_of_varied_size():
    graph = data.molecule_batch(40, 18.5, 2.2, seed=2)
    assert_simple(graph)
    assert (graph.num_graphs, graph.num_nodes, graph.num_edges) == (40, 740, 1_628)
    source, target = graph.edge_index
    assert torch.equal(graph.batch[source], graph.batch[target])
    sizes = torch.bincount(graph.batch)
    assert int(sizes.max()) > int(sizes.min()) >= 1
    reached = torch.arange(graph.num_nodes)
    for _ in range(graph.num_nodes):  # smallest id that each node is connected to
        spread = reached.scatter_reduce(0, target, reached[source], "amin")
        if torch.equal(spread, reached):
            break
        reached = spread
    assert len(reached.unique()) == 40


def test_features_follow_the_preset():
    graph = data.generate("arxiv", scale=0.01, features="normal")
    assert graph.x.shape == (1_693, 128)
    assert graph.num_classes <= 40
    assert graph.y.shape == (1_693,)
    batch = data.generate("Yeast", scale=0.001, features="normal")
    assert batch.y.shape == (batch.num_graphs,)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: data.generate("facebook"), "name must be one of ppi, .*, got 'facebook'"),
        (lambda: data.generate("ppi", scale=0), "scale must be positive, got 0"),
        (lambda: data.generate("ppi", scale=float("nan")), "scale must be finite, got nan"),
        (lambda: data.generate("reddit", scale=0.001), "scale=0.001 leaves 233 nodes, too few for 114849 edges"),
        (lambda: data.generate("roadNet-CA", scale=0.001, features="normal"), "the papers give it no features"),
        (lambda: data.generate("ppi", features="ones"), "features must be one of 'none', 'normal', got 'ones'"),
        (lambda: data.rmat(10, 20, 0.5, 0.5, 0.5, 0.5), "must be chances that sum to 1"),
        (lambda: data.rmat(10, 91), r"num_edges must lie in \[0, 90\] for 10 nodes, got 91"),
        (lambda: data.rmat(10, 90, 1.0, 0.0, 0.0, 0.0), "cannot find 90 distinct edges, only 0"),
        (lambda: data.power_law(10, 20, 2.0), r"exponent must be above 2 .*, got 2.0"),
        (lambda: data.power_law(10, 20, max_degree=2), "max_degree must lie between the mean 2.0 and 10, got 2"),
        (lambda: data.sbm([10], 1.5, 0.0), r"p_in must lie in \[0, 1\], got 1.5"),
        (lambda: data.sbm([10, 0], 0.5, 0.0), r"blocks must be sizes of at least 1, got \[10, 0\]"),
        (lambda: data.grid_road(4, 9), r"num_edges must lie in \[0, 8\] for this grid, got 9"),
        (lambda: data.molecule_batch(0, 10, 2.0), "graphs must be at least 1 and nodes at least 2, got 0 and 10"),
        (lambda: data.molecule_batch(5, 10, 1.0), r"degree must be at least 1.8000 \(trees\), got 1.0"),
        (lambda: data.molecule_batch(5, 4, 9.0), "cannot find 75 distinct edges"),
    ],
)
def test_impossible_requests_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["artist", "YeastH", "roadNet-CA", "web-BerkStan"])
def test_generators_run_on_the_gpu(name):
    graph = data.generate(name, scale=0.05, device="cuda")
    assert graph.edge_index.is_cuda
    assert_simple(graph, symmetric=name != "web-BerkStan")
    assert torch.equal(graph.edge_index, data.generate(name, scale=0.05, device="cuda").edge_index)
