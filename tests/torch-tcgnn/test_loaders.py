"""`ToTCGraph` in PyG's loaders, with workers and without: a layer on the translated piece is the layer on its edges."""

from __future__ import annotations

import pytest
import torch
import torch_tcgnn as tcg

pytest.importorskip("torch_geometric")
import torch_geometric.typing as pyg_has
from torch_geometric.data import Data
from torch_geometric.loader import (
    CachedLoader,
    ClusterData,
    ClusterLoader,
    DataLoader,
    NeighborLoader,
    RandomNodeLoader,
)
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

NODES, EDGES, FEATURES = 50, 300, 6
RNG = torch.Generator().manual_seed(0)
DATA = Data(
    x=torch.randn(NODES, FEATURES, generator=RNG),
    edge_index=torch.randint(0, NODES, (2, EDGES), generator=RNG),
    edge_weight=torch.rand(EDGES, generator=RNG),
)
WORKERS = [0, 1]
needs_samplers = pytest.mark.skipif(
    not (pyg_has.WITH_PYG_LIB or pyg_has.WITH_TORCH_SPARSE),
    reason="PyG's own samplers need pyg-lib or torch-sparse",
)


class WholeNeighbourhood(BaseSampler):
    """Every edge that enters a seed: what PyG's sampler gives for one layer, in Python."""

    sample_from_edges = None  # loaders of nodes do not call it

    def sample_from_nodes(self, index: NodeSamplerInput, **_: object) -> SamplerOutput:
        source, target = DATA.edge_index
        edge = torch.isin(target, index.node).nonzero().view(-1)
        others = source[edge][~torch.isin(source[edge], index.node)].unique()
        node = torch.cat([index.node, others])
        place = torch.full((NODES,), -1).scatter(0, node, torch.arange(node.shape[0]))
        return SamplerOutput(
            node=node, row=place[source[edge]], col=place[target[edge]], edge=edge, batch=None,
            num_sampled_nodes=None, num_sampled_edges=None, metadata=(index.input_id, None),
        )  # fmt: skip

    @property
    def edge_permutation(self) -> None:
        return None


def check_neighbours(loader: NeighborLoader) -> None:
    """One layer on the neighbourhoods of the seeds gives the rows of the layer on the whole graph."""
    layer = tcg.nn.GraphConv(FEATURES, 3)
    whole = layer(DATA.x, DATA.edge_index, DATA.edge_weight)
    seen = []
    for batch in loader:
        assert batch.tcg.num_rows == batch.x.shape[0]
        seeds = batch.n_id[: batch.batch_size]
        torch.testing.assert_close(layer(batch.x, batch.tcg)[: batch.batch_size], whole[seeds], rtol=1e-5, atol=1e-5)
        seen.append(seeds)
    assert torch.equal(torch.cat(seen).sort()[0], torch.arange(NODES))


@pytest.mark.filterwarnings("ignore:Using .*without a 'pyg-lib' installation")
@pytest.mark.parametrize("workers", WORKERS)
def test_neighbourhoods_of_a_sampler_in_python(workers):
    options = {"num_neighbors": [-1], "batch_size": 7, "num_workers": workers, "transform": tcg.transforms.ToTCGraph()}
    check_neighbours(NeighborLoader(DATA, neighbor_sampler=WholeNeighbourhood(), **options))


@needs_samplers
@pytest.mark.parametrize("workers", WORKERS)
def test_neighbourhoods_of_pygs_sampler(workers):
    options = {"num_neighbors": [-1], "batch_size": 7, "num_workers": workers, "transform": tcg.transforms.ToTCGraph()}
    check_neighbours(NeighborLoader(DATA, **options))


def check_pieces(pieces) -> None:
    layer = tcg.nn.GATConv(FEATURES, 3, heads=2)
    count = 0
    for piece in pieces:
        assert torch.equal(piece.tcg.to_edge_index(), piece.edge_index)
        torch.testing.assert_close(layer(piece.x, piece.tcg), layer(piece.x, piece.edge_index))
        count += piece.num_nodes
    assert count == NODES


def test_random_pieces_of_a_graph():
    transform = tcg.transforms.ToTCGraph()
    check_pieces(transform(piece) for piece in RandomNodeLoader(DATA, num_parts=4))
    check_pieces(CachedLoader(RandomNodeLoader(DATA, num_parts=4), transform=transform))


@needs_samplers
def test_clusters_of_a_graph():
    loader = ClusterLoader(ClusterData(DATA, 4), batch_size=2)
    check_pieces(tcg.transforms.ToTCGraph()(piece) for piece in loader)


class Graphs(torch.utils.data.Dataset):
    """Graphs of 3, 4, 5, … nodes, translated where they are read."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, k: int) -> Data:
        rng = torch.Generator().manual_seed(k)
        nodes = 3 + k
        edge_index = torch.randint(0, nodes, (2, 4 * nodes), generator=rng)
        return tcg.transforms.ToTCGraph()(Data(x=torch.randn(nodes, FEATURES, generator=rng), edge_index=edge_index))


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_of_graphs_translated_before_and_after(workers):
    layer = tcg.nn.GCNConv(FEATURES, 3)
    sizes = []
    for batch in DataLoader(Graphs(), batch_size=4, num_workers=workers):
        combined = tcg.from_batch(batch.tcg)
        again = tcg.transforms.ToTCGraph()(batch.clone()).tcg
        assert torch.equal(combined.to_edge_index(), batch.edge_index)
        assert torch.equal(again.to_edge_index(), batch.edge_index)
        expected = torch.cat([layer(data.x, data.edge_index) for data in batch.to_data_list()])
        for graph in (combined, again, batch.edge_index):
            torch.testing.assert_close(layer(batch.x, graph), expected)
        sizes.append(batch.num_graphs)
    assert sizes == [4, 4, 1]
