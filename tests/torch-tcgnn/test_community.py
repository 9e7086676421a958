"""Communities: found by modularity without collapsing into one, then rows of a window by common neighbours."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_tcgnn import community, data
from torch_tcgnn.adjacency import compress
from torch_tcgnn.community import STRETCH, by_common_neighbours, communities, community_order
from torch_tcgnn.window_counts import vectors_per_window


def shuffled(graph, seed=0):
    names = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(seed))
    edge_index = names[graph.edge_index]
    return names, compress(edge_index[1], edge_index[0], graph.num_nodes, graph.num_nodes)


def reuse(adjacency, order):
    return adjacency.num_edges / int(vectors_per_window(adjacency, adjacency.num_rows, row_order=order).sum())


def identity(adjacency):
    return torch.arange(adjacency.num_rows)


@given(data=st.data(), nodes=st.integers(1, 40), edges=st.integers(0, 120), stretch=st.sampled_from([8, 16, 256]))
@settings(max_examples=60, deadline=None)
def test_the_order_is_a_permutation_and_deterministic(data, nodes, edges, stretch):
    ids = st.lists(st.integers(0, nodes - 1), min_size=edges, max_size=edges)
    adjacency = compress(torch.tensor(data.draw(ids), dtype=torch.long), torch.tensor(data.draw(ids), dtype=torch.long),
                         nodes, nodes)  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(community, "STRETCH", stretch)
        patch.setattr(community, "PAIRS", 2 * stretch**2)  # several parts
        start = torch.arange(nodes).flip(0)
        order = community_order(adjacency, nodes, start)
        assert sorted(order.tolist()) == list(range(nodes))
        assert torch.equal(order, community_order(adjacency, nodes, start))


def test_communities_of_a_stochastic_block_model_are_found():
    graph = data.sbm([64] * 30, 0.3, 5e-4)
    names, adjacency = shuffled(graph)
    found = list(communities(adjacency))[-1][names]  # of the nodes in their first order: 64 a block
    blocks = found.view(30, 64)
    most = blocks.mode(dim=1).values
    assert (blocks == most[:, None]).float().mean() > 0.95
    assert most.unique().shape[0] >= 25


def test_a_well_connected_graph_does_not_collapse_into_one_community():
    """Hubs that everybody knows, on top of communities: most common labels spread to all nodes here."""
    graph = data.sbm([40] * 20, 0.4, 0.02)
    hubs = torch.cartesian_prod(torch.arange(4), torch.arange(4, graph.num_nodes)).t()
    edge_index = torch.cat([graph.edge_index, hubs, hubs.flip(0)], dim=1)
    adjacency = compress(edge_index[1], edge_index[0], graph.num_nodes, graph.num_nodes)
    first, *_ = communities(adjacency)
    assert int(first.bincount().max()) < graph.num_nodes // 5


def test_levels_only_merge():
    _, adjacency = shuffled(data.sbm([16] * 40, 0.5, 2e-3))
    levels = list(communities(adjacency))
    assert len(levels) > 1
    for finer, coarser in itertools.pairwise(levels):
        pairs = torch.stack([finer, coarser]).unique(dim=1)
        assert pairs.shape[1] == int(finer.max()) + 1, "members of a community stay together"
        assert int(coarser.max()) < int(finer.max())


@pytest.mark.parametrize("graph, before, after", [
    (data.sbm([32] * 100, 0.4, 1e-3), 1.1, 2.1),
    (data.molecule_batch(300, 30, 3.7), 1.1, 1.9),
])  # fmt: skip
def test_scattered_communities_meet_again(graph, before, after):
    _, adjacency = shuffled(graph)
    order = community_order(adjacency, adjacency.num_rows, identity(adjacency))
    assert reuse(adjacency, None) < before
    assert reuse(adjacency, order) > after


@pytest.mark.parametrize("rows", [1, 7, STRETCH - 1, STRETCH, STRETCH + 1, 3 * STRETCH + 5])
def test_common_neighbours_are_those_of_the_dense_product(rows):
    rng = torch.Generator().manual_seed(rows)
    row, col = (torch.randint(n, (6 * rows,), generator=rng) for n in (rows, 20))  # some edges twice
    adjacency = compress(row, col, rows, 20)
    dense = torch.zeros(rows, 20).index_put_((row, col), torch.tensor(1.0))
    order = torch.randperm(rows, generator=rng)
    shared, length = community._common_neighbours(adjacency, 20, order)
    for stretch, part in enumerate(order.split(STRETCH)):
        expected = (dense[part] @ dense[part].T).fill_diagonal_(0)
        size = part.shape[0]
        assert torch.equal(shared[stretch, :size, :size].fill_diagonal_(0).float(), expected)
        assert torch.equal(length[stretch, :size], adjacency.rowptr.long().diff()[part])


def test_a_window_begins_with_the_longest_row_and_goes_on_by_common_neighbours():
    columns = {0: [0, 1], 1: [5, 6, 7, 8], 2: [0, 2], 3: [5, 6], 4: [6, 7, 8], 5: [3]}
    row = torch.tensor([r for r, cols in columns.items() for _ in cols])
    col = torch.tensor([c for cols in columns.values() for c in cols])
    adjacency = compress(row, col, 6, 9)
    assert by_common_neighbours(adjacency, 9, torch.arange(6)).tolist() == [1, 4, 3, 0, 2, 5]


@pytest.mark.gpu
def test_gpu_gives_the_same_order():
    _, here = shuffled(data.sbm([32] * 50, 0.4, 1e-3))
    there = compress(here.rows().cuda(), here.col.cuda(), here.num_rows, here.num_rows)
    a, b = (community_order(adj, adj.num_rows, identity(adj).to(adj.col.device)) for adj in (here, there))
    assert torch.equal(a, b.cpu())
