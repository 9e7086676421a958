"""`TCGraph.stats`: the figures of the specification, and what tensor cores would take."""

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn import cost, data
from torch_tcgnn import stats as stats_module
from torch_tcgnn.adjacency import compress
from torch_tcgnn.window_counts import entries_per_window, vectors_per_window

# Distinct entries, 8 × 8 blocks, and entries for each gathered row in windows of 16 and of 8 rows.
REAL_GRAPHS = {
    "cora": (10_556, 1_365, 1.10, 1.08),
    "pubmed": (88_648, 12_080, 1.01, 1.01),
    "polblogs": (33_430, 3_241, 1.63, 1.32),
    "amazon_photo": (238_162, 28_911, 1.09, 1.05),
    "amazon_computers": (491_722, 59_896, 1.08, 1.04),
    "blogcatalog": (343_486, 38_389, 1.26, 1.13),
    "flickr": (479_476, 43_061, 1.73, 1.41),
    "PROTEINS": (162_088, 15_846, 1.73, 1.50),
    "musae_github": (578_006, 72_009, 1.06, 1.03),
}


@pytest.mark.data
@pytest.mark.parametrize("name", REAL_GRAPHS)
def test_statistics_of_real_graphs(data_root, name):
    folder = {"PROTEINS": "tu_PROTEINS", "musae_github": "snap_small"}.get(name, name)
    if not (data_root / folder).is_dir():
        pytest.skip(f"no {folder} in {data_root.name}")
    graph = data.load(name, data_root)
    stats = tcg.TCGraph.from_edge_index(graph.edge_index, graph.num_nodes).stats
    found = stats.nnz, stats.blocks, round(stats.nnz / stats.v16, 2), round(stats.nnz / stats.v8, 2)
    assert found == REAL_GRAPHS[name]
    assert stats.reuse == stats.nnz / stats.v8


def random_edges(sources, targets, edges, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(n, (edges,), generator=rng) for n in (sources, targets)])


@pytest.mark.parametrize("height", [8, 16])
@pytest.mark.parametrize("rows, edges", [(50, 400), (64, 0), (0, 0), (1, 5)])
def test_windows_are_counted_as_sets_of_columns(rows, edges, height):
    source, target = random_edges(30, max(rows, 1), edges)
    adjacency = compress(target, source, rows, 30)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(1))
    for row_order, window in ((None, target // height), (order, order.argsort()[target] // height)):
        windows = -(-rows // height)
        columns = [set(source[window == w].tolist()) for w in range(windows)]
        assert vectors_per_window(adjacency, 30, height=height, row_order=row_order).tolist() == list(map(len, columns))
        entries = entries_per_window(adjacency, height=height, row_order=row_order).tolist()
        assert entries == [int((window == w).sum()) for w in range(windows)]


@pytest.mark.parametrize("reorder", ["none", "lsh"])
def test_v16_counts_windows_of_the_order_in_use(reorder):
    graph = data.sbm([16] * 20, 0.9, 0.0)
    names = torch.randperm(320, generator=torch.Generator().manual_seed(0))
    g = tcg.TCGraph.from_edge_index(names[graph.edge_index], 320, reorder=reorder)
    assert g.stats.reordered is (reorder != "none")
    source, target = g.to_edge_index()
    if g.stats.reordered:
        target = g.blocks.row_order.long().argsort()[target]
    for height, found in ((8, g.stats.v8), (16, g.stats.v16)):
        assert found == len(set(zip((target // height).tolist(), source.tolist())))


def test_the_share_of_tensor_cores_counts_the_entries_of_their_windows(monkeypatch):
    """Two dense windows of 512 entries among eight whose 64 entries each have a column of their own."""
    dense = torch.cartesian_prod(torch.arange(64), torch.arange(16)).t()
    sparse = torch.stack([100 + torch.arange(512), 16 + torch.arange(512) % 64])
    edge_index = torch.cat([dense, sparse, sparse[:, :3]], dim=1)  # three of them twice
    seen = []

    def by_window(entries, blocks, row_bytes, rates):
        seen.append((sorted(entries.tolist()), blocks.tolist(), row_bytes, rates))
        return entries > 100

    monkeypatch.setattr(stats_module, "prefer_blocks_by_window", by_window)
    stats = tcg.TCGraph.from_edge_index(edge_index, (612, 80)).stats
    assert stats.tc_fraction == 1_024 / 1_539
    assert seen == [([64] * 7 + [67] + [512] * 2, [8] * 10, 512, cost.SM90)]


def test_full_blocks_suit_tensor_cores_and_lone_entries_do_not():
    full = torch.cartesian_prod(torch.arange(32), torch.arange(8_000)).t()
    lone = torch.stack([torch.arange(64_000) * 7 % 8_000, torch.arange(64_000) // 8])
    assert tcg.TCGraph.from_edge_index(full, 8_000).stats.tc_fraction == 1.0
    assert tcg.TCGraph.from_edge_index(lone, 8_000).stats.tc_fraction == 0.0


@pytest.mark.parametrize("nodes", [0, 5])
def test_a_graph_without_edges_has_nothing_for_tensor_cores(nodes):
    stats = tcg.TCGraph.from_edge_index(torch.empty(2, 0, dtype=torch.long), nodes).stats
    assert (stats.v8, stats.v16, stats.reuse, stats.tc_fraction, stats.reordered) == (0, 0, 0.0, 0.0, False)
