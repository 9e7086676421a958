"""Sums over real graphs, computed independently in float64 from the files, that the operators must give back."""

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn import data

# sum, trace and squared Frobenius norm of Â = D^-1/2 (A + I) D^-1/2; with x_i = (i mod 7) + 1: Σ A x, max A x,
# (Â x)_0; triangles
KNOWN = {
    "cora": (2505.33927051, 745.558974067, 619.186278355, 41_887, 695, 3.2236068, 1_630),
    "citeseer": (3187.47825646, 1195.96508994, 1076.81031820, 36_271, 407, 3.5, 1_167),
    "pubmed": (16352.8153897, 6693.46161005, 4260.41341266, 352_892, 680, 2.00907775, 12_520),
}
NAMES = list(KNOWN)


@pytest.fixture(scope="module")
def edges(data_root):
    """``edges(name)``: edge_index without self loops and the number of nodes."""
    loaded = {}

    def load(name: str) -> tuple[torch.Tensor, int]:
        if not (data_root / name).is_dir():
            pytest.skip(f"no {name} in {data_root.name}")
        if name not in loaded:
            graph = data.planetoid(name, data_root)
            loaded[name] = (graph.edge_index, graph.num_nodes)
        return loaded[name]

    return load


def counting_features(num_nodes: int) -> torch.Tensor:
    """``[N, 1]`` float64: (i mod 7) + 1."""
    return (torch.arange(num_nodes) % 7 + 1).double()[:, None]


def normalised(edge_index: torch.Tensor, num_nodes: int) -> tcg.TCGraph:
    weight = torch.ones(edge_index.shape[1], dtype=torch.float64)
    return tcg.TCGraph.from_edge_index(edge_index, num_nodes=num_nodes, edge_weight=weight).gcn_norm()


@pytest.mark.data
@pytest.mark.parametrize("name", NAMES)
def test_normalised_adjacency_has_the_known_sum_trace_and_norm(edges, name):
    g = normalised(*edges(name))
    total, trace, norm = KNOWN[name][:3]
    source, target = g.to_edge_index()
    assert g.weight.sum().item() == pytest.approx(total, rel=1e-10)
    assert g.weight[source == target].sum().item() == pytest.approx(trace, rel=1e-10)
    assert g.weight.square().sum().item() == pytest.approx(norm, rel=1e-10)


@pytest.mark.data
@pytest.mark.parametrize("name", NAMES)
def test_spmm_with_ones_gives_the_sum_of_the_normalised_adjacency(edges, name):
    edge_index, num_nodes = edges(name)
    y = tcg.spmm(normalised(edge_index, num_nodes), torch.ones(num_nodes, 1, dtype=torch.float64))
    assert y.sum().item() == pytest.approx(KNOWN[name][0], rel=1e-10)


@pytest.mark.data
@pytest.mark.parametrize("name", NAMES)
def test_normalised_spmm_gives_the_known_first_row(edges, name):
    edge_index, num_nodes = edges(name)
    y = tcg.spmm(normalised(edge_index, num_nodes), counting_features(num_nodes))
    assert y[0].item() == pytest.approx(KNOWN[name][5], rel=1e-8)


@pytest.mark.data
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_unweighted_spmm_of_integers_is_exact(edges, name, dtype):
    edge_index, num_nodes = edges(name)
    g = tcg.TCGraph.from_edge_index(edge_index, num_nodes=num_nodes)
    y = tcg.spmm(g, counting_features(num_nodes).to(dtype))
    assert (int(y.double().sum()), int(y.max())) == KNOWN[name][3:5]


@pytest.mark.data
@pytest.mark.parametrize("name", NAMES)
def test_sddmm_counts_the_triangles(edges, name):
    """Σ (A ∘ A²) = 6 · triangles; A² on the edges is the sampled product of rows of A, here 1,024 columns at a time."""
    edge_index, num_nodes = edges(name)
    g = tcg.TCGraph.from_edge_index(edge_index, num_nodes=num_nodes)
    total = 0
    for start in range(0, num_nodes, 1_024):
        here = edge_index[:, (edge_index[0] >= start) & (edge_index[0] < start + 1_024)]
        slab = torch.zeros(num_nodes, 1_024)
        slab[here[1], here[0] - start] = 1
        total += int(tcg.sddmm(g, slab, slab).double().sum())
    assert total == 6 * KNOWN[name][6]
