"""Orders of rows are permutations that bring rows with common neighbours into one window, and change no result."""

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn import data, reorder
from torch_tcgnn.reorder import REORDERS, row_order

ORDERS = [name for name in REORDERS if name != "none"]


def random_graph(reorder: str = "none", nodes: int = 90, edges: int = 500) -> tcg.TCGraph:
    rng = torch.Generator().manual_seed(0)
    return tcg.TCGraph.from_edge_index(torch.randint(nodes, (2, edges), generator=rng), nodes, reorder=reorder)


def shuffled_cliques(reorder: str, cliques: int = 90, size: int = 8) -> tcg.TCGraph:
    """Cliques whose members' ids are scattered: windows in id order share next to nothing."""
    inside = torch.cartesian_prod(torch.arange(size), torch.arange(size)).t()
    edge_index = (inside[:, None] + size * torch.arange(cliques)[None, :, None]).reshape(2, -1)
    names = torch.randperm(cliques * size, generator=torch.Generator().manual_seed(0))
    return tcg.TCGraph.from_edge_index(names[edge_index], cliques * size, reorder=reorder)


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("nodes, edges", [(90, 500), (20, 0), (1, 3), (0, 0)])
def test_every_order_is_a_permutation(name, nodes, edges):
    if name == "rcm":
        pytest.importorskip("scipy")
    rng = torch.Generator().manual_seed(0)
    edge_index = torch.randint(max(nodes, 1), (2, edges), generator=rng)
    order = row_order(tcg.TCGraph.from_edge_index(edge_index, nodes).adjacency, nodes, name)
    assert sorted(order.tolist()) == list(range(nodes))


@pytest.mark.parametrize("name", ["degree", "lsh"])
def test_bipartite_graphs_can_be_ordered(name):
    g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 8, 3], [1, 0, 1]]), (9, 2))
    assert sorted(row_order(g.adjacency, 9, name).tolist()) == [0, 1]


@pytest.mark.parametrize("name", ["rcm", "community"])
def test_orders_that_need_a_square_graph_say_so(name):
    message = f"reorder='{name}' needs a square graph, got 2 rows and 9 columns"
    with pytest.raises(ValueError, match=message):
        tcg.TCGraph.from_edge_index(torch.tensor([[0, 8, 3], [1, 0, 1]]), (9, 2), reorder=name)
    with pytest.raises(ValueError, match=message):
        tcg.TCGraph.from_csr(torch.tensor([0, 1, 3]), torch.tensor([8, 0, 3]), size=(2, 9), reorder=name)


def test_degree_puts_the_longest_rows_first():
    g = random_graph()
    degree = g.adjacency.rowptr.diff()
    assert bool((degree[row_order(g.adjacency, 90, "degree")].diff() <= 0).all())


@pytest.mark.parametrize("name", ["rcm", "lsh", "community"])
def test_cliques_that_were_scattered_meet_again(name):
    if name == "rcm":
        pytest.importorskip("scipy")
    before, after = shuffled_cliques("none").stats, shuffled_cliques(name).stats
    assert before.nnz == after.nnz
    assert before.reuse < 1.5
    assert after.reuse == 8.0, "every window holds one clique"
    assert after.blocks == 90


@pytest.mark.parametrize("graph", [random_graph, shuffled_cliques])
@pytest.mark.parametrize("name", ORDERS)
def test_order_changes_no_result_and_no_gradient(name, graph):
    if name == "rcm":
        pytest.importorskip("scipy")
    plain, ordered = graph("none"), graph(name)
    x = torch.randn(plain.num_cols, 5, requires_grad=True)
    results = []
    for g in (plain, ordered):
        _ = g.blocks
        y = tcg.spmm(g, x)
        results.append((y, *torch.autograd.grad(y.square().sum(), x)))
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_the_same_graph_gets_the_same_order_twice():
    a, b = shuffled_cliques("community"), shuffled_cliques("community")
    assert a.stats.reordered
    assert torch.equal(a.blocks.row_order, b.blocks.row_order)


@pytest.mark.parametrize("name", ["rcm", "lsh", "community"])
def test_an_order_that_saves_time_is_used(name):
    if name == "rcm":
        pytest.importorskip("scipy")
    g = shuffled_cliques(name)
    assert g.stats.reordered
    assert sorted(g.blocks.row_order.tolist()) == list(range(g.num_rows))


@pytest.mark.parametrize("name", ORDERS)
def test_an_order_that_saves_nothing_is_dropped(name):
    """Cliques of consecutive ids fill their windows as they are."""
    if name == "rcm":
        pytest.importorskip("scipy")
    edge_index = torch.cartesian_prod(torch.arange(8), torch.arange(8)).t()
    edge_index = (edge_index[:, None] + 8 * torch.arange(40)[None, :, None]).reshape(2, -1)
    plain, ordered = (tcg.TCGraph.from_edge_index(edge_index, 320, reorder=order) for order in ("none", name))
    assert not ordered.stats.reordered
    assert ordered.blocks.row_order.numel() == 0
    assert ordered.stats == plain.stats


def test_three_percent_of_the_predicted_time_decide(monkeypatch):
    g = shuffled_cliques("none")
    order = torch.randperm(g.num_rows)
    for saved, expected in ((0.031, True), (0.029, False)):
        times = iter([100.0, 100.0 * (1 - saved)])
        monkeypatch.setattr(reorder, "_predicted_us", lambda *arguments, times=times: next(times))
        assert reorder.pays(g.adjacency, g.num_cols, order) is expected


def test_unknown_order_lists_the_choices():
    with pytest.raises(ValueError, match=r"reorder must be one of 'none', 'degree'.*got 'rabbit'"):
        random_graph("rabbit")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["degree", "lsh", "community"])
def test_gpu_gives_the_same_order(name):
    here = random_graph()
    there = here.to("cuda")
    assert torch.equal(row_order(there.adjacency, 90, name).cpu(), row_order(here.adjacency, 90, name))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["degree", "lsh", "community"])
def test_gpu_results_do_not_depend_on_the_order(name):
    x = torch.randint(-8, 9, (90, 33)).float().cuda()
    expected = tcg.spmm(random_graph(), x.cpu())
    edge_index = random_graph().to_edge_index().cuda()
    ordered = tcg.TCGraph.from_edge_index(edge_index, 90, reorder=name, path="tc")
    assert torch.equal(tcg.spmm(ordered, x).cpu(), expected)


# What the best orders reach; ids of PROTEINS are shuffled, since a batch lists each graph's nodes together.
REACHED = {
    "cora": 1.55, "pubmed": 1.45, "amazon_computers": 1.85, "blogcatalog": 1.35, "flickr": 1.55, "PROTEINS": 2.1,
}  # fmt: skip


@pytest.mark.data
@pytest.mark.parametrize("name", REACHED)
def test_communities_of_real_graphs_fill_windows_best(data_root, name):
    if not (data_root / {"PROTEINS": "tu_PROTEINS"}.get(name, name)).is_dir():
        pytest.skip(f"no {name} in {data_root.name}")
    graph = data.load(name, data_root)
    edge_index = graph.edge_index
    if name == "PROTEINS":
        edge_index = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))[edge_index]
    plain, lsh, community = (
        tcg.TCGraph.from_edge_index(edge_index, graph.num_nodes, reorder=order).stats
        for order in ("none", "lsh", "community")
    )
    assert community.reordered
    assert community.reuse > REACHED[name] > max(lsh.reuse, plain.reuse)
    assert community.blocks < min(lsh.blocks, plain.blocks)
