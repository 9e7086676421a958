"""Loaders against the published counts of each set and against torch-geometric's reading of the same files."""

import sys
from pathlib import Path

import pytest
import torch
from torch_tcgnn import data

FOLDERS = {"PROTEINS": "tu_PROTEINS", "MUTAG": "tu_MUTAG"} | dict.fromkeys(
    ("ca-CondMat", "p2p-Gnutella31", "musae_facebook", "musae_github"), "snap_small"
)


@pytest.fixture
def folder(data_root):
    """``folder(name)``: where the files of a set lie; skips where they do not."""

    def find(name: str) -> Path:
        path = data_root / FOLDERS.get(name, name)
        if not path.is_dir():
            pytest.skip(f"no {path.name} in {data_root.name}")
        return path

    return find


def pairs(edge_index: torch.Tensor) -> set[tuple[int, int]]:
    return set(zip(*edge_index.tolist()))


def is_clean(graph: data.GraphData) -> bool:
    source, target = graph.edge_index
    key = target * graph.num_nodes + source
    mirrored = (source * graph.num_nodes + target).sort()[0]
    return bool((key.diff() > 0).all() and (source != target).all() and torch.equal(key, mirrored))


# name, nodes, listed, distinct listed, listed self loops, clean edges, isolated, largest degree, features, train
PLANETOID = [
    ("cora", 2_708, 10_858, 10_556, 0, 10_556, 0, 168, 1_433, 140),
    ("citeseer", 3_327, 9_464, 9_228, 124, 9_104, 48, 99, 3_703, 120),
    ("pubmed", 19_717, 88_676, 88_651, 3, 88_648, 0, 171, 500, 60),
]


@pytest.mark.data
@pytest.mark.parametrize("name, nodes, listed, distinct, loops, clean, isolated, hub, features, train", PLANETOID)
def test_planetoid_counts(folder, name, nodes, listed, distinct, loops, clean, isolated, hub, features, train):
    root = folder(name).parent
    raw, graph = data.planetoid(name, root, edges="listed"), data.planetoid(name, root)
    assert (raw.num_nodes, raw.num_edges, len(pairs(raw.edge_index))) == (nodes, listed, distinct)
    looped = raw.edge_index[:, raw.edge_index[0] == raw.edge_index[1]]
    assert len(pairs(looped)) == loops
    assert graph.num_edges == clean
    assert is_clean(graph)
    degree = torch.bincount(graph.edge_index[1], minlength=nodes)
    assert (int((degree == 0).sum()), int(degree.max())) == (isolated, hub)
    assert graph.x.shape == (nodes, features)
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    assert [int(mask.sum()) for mask in masks] == [train, 500, 1_000]
    assert int(sum(mask.int() for mask in masks).max()) == 1


@pytest.mark.data
@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed"])
def test_planetoid_is_what_torch_geometric_reads(folder, name):
    pytest.importorskip("scipy", reason="torch-geometric unpickles with SciPy")
    io = pytest.importorskip("torch_geometric.io")
    theirs, ours = io.read_planetoid_data(str(folder(name)), name), data.planetoid(name, folder(name))
    assert torch.equal(ours.edge_index, theirs.edge_index)
    for field in ("x", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(ours, field), getattr(theirs, field)), field


@pytest.mark.data
def test_pubmed_features_are_whole(folder):
    graph = data.planetoid("PubMed", folder("pubmed"))
    assert int((graph.x != 0).sum()) == 988_031
    assert torch.bincount(graph.y).tolist() == [4_103, 7_739, 7_875]


@pytest.mark.data
def test_citeseer_test_ids_that_are_missing_have_zero_features_and_no_mask(folder):
    graph = data.planetoid("citeseer", folder("citeseer"))
    missing = torch.arange(2_312, 3_327)[~graph.test_mask[2_312:]]
    assert missing.numel() == 15
    assert not graph.x[missing].any()
    assert not (graph.train_mask | graph.val_mask)[missing].any()


# name, nodes, listed, undirected, features, nonzero features, class sizes
NPZ = [
    ("cora_ml", 2_995, 8_416, 16_316, 2_879, 151_171, [354, 402, 452, 442, 857, 193, 295]),
    ("polblogs", 1_490, 19_025, 33_430, 0, 0, [758, 732]),
    ("amazon_photo", 7_650, 143_663, 238_162, 745, 1_979_909, [369, 1_686, 703, 915, 882, 823, 1_941, 331]),
    ("amazon_computers", 13_752, 287_209, 491_722, 767, 3_675_081,
     [436, 2_142, 1_414, 542, 5_158, 308, 487, 818, 2_156, 291]),
    ("blogcatalog", 5_196, 343_486, 343_486, 8_189, 369_435, None),
    ("flickr", 7_575, 479_476, 479_476, 12_047, 182_517, None),
]  # fmt: skip


@pytest.mark.data
@pytest.mark.parametrize("name, nodes, listed, clean, features, nonzero, classes", NPZ)
def test_npz_counts(folder, name, nodes, listed, clean, features, nonzero, classes):
    path = folder(name) / f"{name}.npz"
    graph = data.npz(path, features="sparse")
    assert (graph.num_nodes, graph.num_edges, graph.num_features) == (nodes, clean, features)
    assert is_clean(graph)
    assert data.npz(path, edges="listed", features="none").num_edges == listed
    assert (0 if graph.x is None else int((graph.x.values() != 0).sum())) == nonzero
    sizes = torch.bincount(graph.y)
    assert int(sizes.min()) > 0
    if classes is not None:
        assert sizes.tolist() == classes


@pytest.mark.data
@pytest.mark.parametrize("name, classes", [("blogcatalog", 6), ("flickr", 9)])
def test_classes_that_start_at_one_are_renumbered(folder, name, classes):
    assert data.npz(folder(name) / f"{name}.npz", features="none").num_classes == classes


@pytest.mark.data
def test_dense_and_sparse_features_agree(folder):
    path = folder("cora_ml") / "cora_ml.npz"
    assert torch.equal(data.npz(path).x, data.npz(path, features="sparse").x.to_dense())


@pytest.mark.data
def test_amazon_is_what_torch_geometric_reads(folder):
    pytest.importorskip("scipy", reason="torch-geometric reads .npz files with SciPy")
    io = pytest.importorskip("torch_geometric.io")
    path = folder("amazon_photo") / "amazon_photo.npz"
    theirs, ours = io.read_npz(str(path)), data.npz(path)
    assert pairs(ours.edge_index) == pairs(theirs.edge_index)
    assert torch.equal(ours.x, theirs.x)
    assert torch.equal(ours.y, theirs.y)


@pytest.mark.data
def test_polblogs_keeps_weights_and_loops_when_listed(folder):
    graph = data.load("polblogs", folder("polblogs"), edges="listed")
    assert graph.edge_weight.unique().tolist() == [1.0, 2.0]
    assert int((graph.edge_index[0] == graph.edge_index[1]).sum()) == 3


@pytest.mark.data
def test_matrix_market_symmetric_pattern_is_expanded(folder):
    graph = data.mtx(folder("ca-CondMat") / "ca-CondMat.mtx.gz")
    assert (graph.num_nodes, graph.num_edges, graph.edge_weight) == (23_133, 186_936, None)
    assert int((graph.edge_index[0] == graph.edge_index[1]).sum()) == 58
    assert int(torch.bincount(graph.edge_index[0]).max()) == 280


@pytest.mark.data
def test_matrix_market_general_stays_directed(folder):
    graph = data.mtx(folder("p2p-Gnutella31") / "p2p-Gnutella31.mtx.gz")
    assert (graph.num_nodes, graph.num_edges) == (62_586, 147_892)
    row_lengths = torch.bincount(graph.edge_index[0], minlength=graph.num_nodes)
    assert (int((row_lengths == 0).sum()), int(row_lengths.max())) == (46_199, 78)
    assert graph.edge_weight.shape == (147_892,)


@pytest.mark.data
@pytest.mark.parametrize(
    "name, nodes, lines, clean, hub",
    [("musae_facebook", 22_470, 171_002, 341_646, 709), ("musae_github", 37_700, 289_003, 578_006, 9_458)],
)
def test_edge_list_counts(folder, name, nodes, lines, clean, hub):
    path = folder(name) / f"{name}.csv.gz"
    assert data.edge_list(path, edges="listed").num_edges == lines
    graph = data.edge_list(path)
    assert (graph.num_nodes, graph.num_edges, graph.name) == (nodes, clean, name)
    assert int(torch.bincount(graph.edge_index[1]).max()) == hub


@pytest.mark.data
@pytest.mark.parametrize(
    "name, graphs, nodes, edges, classes, labels",
    [
        ("PROTEINS", 1_113, 43_471, 162_088, [663, 450], [21_151, 20_931, 1_389]),
        ("MUTAG", 188, 3_371, 7_442, [63, 125], None),
    ],
)
def test_tu_counts(folder, name, graphs, nodes, edges, classes, labels):
    graph = data.tu(name, folder(name))
    assert (graph.num_graphs, graph.num_nodes, graph.num_edges) == (graphs, nodes, edges)
    assert torch.bincount(graph.y).tolist() == classes
    source, target = graph.edge_index
    assert torch.equal(graph.batch[source], graph.batch[target])
    assert bool((graph.x.sum(1) == 1).all())
    if labels is not None:
        assert graph.x.sum(0).tolist() == labels
    if name == "MUTAG":
        assert graph.edge_attr.shape == (edges, 4)


@pytest.mark.data
@pytest.mark.parametrize("name", data.NAMES)
def test_every_name_loads(folder, data_root, name):
    if name == "digits":
        pytest.importorskip("sklearn")
    elif name == "nci":
        pytest.importorskip("rdkit")
    else:
        folder(name)
    graph = data.load(name, data_root)
    assert graph.name == name
    assert is_clean(graph) or graph.batch is not None


def test_digits_form_a_symmetric_neighbour_graph_with_a_seeded_split():
    pytest.importorskip("sklearn")
    graph = data.digits()
    assert (graph.num_nodes, graph.num_features, graph.num_classes) == (1_797, 64, 10)
    assert is_clean(graph)
    assert int(torch.bincount(graph.edge_index[1]).min()) >= 8
    masks = torch.stack([graph.train_mask, graph.val_mask, graph.test_mask])
    assert masks.sum(1).tolist() == [200, 500, 1_000]
    assert torch.bincount(graph.y[graph.train_mask]).tolist() == [20] * 10
    assert int(masks.sum(0).max()) == 1
    assert torch.equal(graph.train_mask, data.digits(seed=0).train_mask)
    assert not torch.equal(graph.train_mask, data.digits(seed=1).train_mask)
    assert float(graph.x.max()) == 1.0
    same_class = (graph.y[graph.edge_index[0]] == graph.y[graph.edge_index[1]]).float().mean()
    assert same_class > 0.9


def test_digits_neighbours_are_the_nearest():
    pytest.importorskip("sklearn")
    graph = data.digits(k=3)
    distance = torch.cdist(graph.x.double(), graph.x.double()).fill_diagonal_(torch.inf)
    reach = distance.topk(3, largest=False)[0][:, -1]
    source, target = graph.edge_index
    length = distance[source, target]
    assert bool((length <= torch.maximum(reach[source], reach[target]) + 1e-9).all())


def test_digits_without_scikit_learn_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'torch-tcgnn\[data\]"):
        data.digits()
