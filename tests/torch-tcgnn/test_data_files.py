"""File formats: pickles that must not run, text that must be read right, broken files that must be named."""

import gzip
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_tcgnn import data
from torch_tcgnn.data.restricted_pickle import load_arrays


class Runs:
    """Unpickles by calling ``function(*arguments)``."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "function", [os.mkdir, Path.mkdir, eval, np.save, np.load, np.memmap, getattr, shutil.rmtree, pickle.loads]
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickle_that_calls_anything_is_refused_before_it_runs(tmp_path, function, protocol):
    target = tmp_path / "made"
    (tmp_path / "bad").write_bytes(pickle.dumps(Runs(function, str(target)), protocol))
    with pytest.raises(pickle.UnpicklingError, match="which a data file does not need"):
        load_arrays(tmp_path / "bad")
    assert not target.exists()


def test_object_arrays_do_not_smuggle_calls_in(tmp_path):
    target = tmp_path / "made"
    (tmp_path / "bad").write_bytes(pickle.dumps(np.array([Runs(os.mkdir, str(target))], dtype=object)))
    with pytest.raises(pickle.UnpicklingError, match="mkdir"):
        load_arrays(tmp_path / "bad")
    assert not target.exists()


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_is_cut_short_names_the_file(tmp_path, protocol):
    whole = pickle.dumps({0: [1, 2], 1: [0]}, protocol)
    for length in range(len(whole)):
        (tmp_path / "ind.cora.graph").write_bytes(whole[:length])
        with pytest.raises(pickle.UnpicklingError, match=r"ind\.cora\.graph"):
            load_arrays(tmp_path / "ind.cora.graph")


def test_a_pickle_with_a_wrong_byte_names_the_file(tmp_path):
    (tmp_path / "ind.cora.graph").write_bytes(pickle.dumps("a word", 4).replace(b"a word", b"\xff word"))
    with pytest.raises(pickle.UnpicklingError, match=r"ind\.cora\.graph is no pickle of arrays, .*UnicodeDecodeError"):
        load_arrays(tmp_path / "ind.cora.graph")


@pytest.mark.data
def test_planetoid_refuses_a_malicious_graph_file(data_root, tmp_path):
    if not (data_root / "cora").is_dir():
        pytest.skip(f"no cora in {data_root.name}")
    for path in (data_root / "cora").glob("ind.*"):
        shutil.copyfile(path, tmp_path / path.name)
    target = tmp_path / "made"
    (tmp_path / "ind.cora.graph").write_bytes(pickle.dumps({0: Runs(os.mkdir, str(target))}))
    with pytest.raises(pickle.UnpicklingError, match=r"ind\.cora\.graph.*mkdir"):
        data.planetoid("cora", tmp_path)
    assert not target.exists()


@pytest.mark.parametrize("protocol", [3, 4])
def test_scipy_matrices_of_today_are_read(tmp_path, protocol):
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.random(30, 20, density=0.2, format="csr", random_state=0)
    (tmp_path / "m").write_bytes(pickle.dumps(matrix, protocol))
    loaded = load_arrays(tmp_path / "m")
    assert loaded.shape == (30, 20)
    assert np.array_equal(loaded.dense().numpy(), matrix.toarray().astype(np.float32))


@pytest.mark.parametrize("header", ["a,b\n", ""])
def test_edge_list_skips_a_header_and_only_a_header(tmp_path, header):
    (tmp_path / "edges.csv").write_text(f"{header}0,1\n1,2\n2,2\n")
    graph = data.edge_list(tmp_path / "edges.csv", edges="listed")
    assert graph.edge_index.tolist() == [[0, 1, 2], [1, 2, 2]]
    assert data.edge_list(tmp_path / "edges.csv", num_nodes=9).num_nodes == 9
    with pytest.raises(ValueError, match=r"edges.csv: line \d is '1,2', but ids must lie in \[0, 2\)"):
        data.edge_list(tmp_path / "edges.csv", num_nodes=2)


def test_edge_list_reads_comments_and_white_space(tmp_path):
    with gzip.open(tmp_path / "edges.txt.gz", "wt") as file:
        file.write("# FromNodeId ToNodeId\n# more\n0\t4\n4\t2\n")
    graph = data.edge_list(tmp_path / "edges.txt.gz", delimiter=None, edges="listed")
    assert graph.edge_index.tolist() == [[0, 4], [4, 2]]


def test_matrix_market_values_follow_the_symmetry(tmp_path):
    body = "% note\n3 3 2\n2 1 5.5\n3 2 -1\n"
    (tmp_path / "s.mtx").write_text(f"%%MatrixMarket matrix coordinate real symmetric\n{body}")
    (tmp_path / "k.mtx").write_text(f"%%MatrixMarket matrix coordinate real skew-symmetric\n{body}")
    symmetric, skew = data.mtx(tmp_path / "s.mtx"), data.mtx(tmp_path / "k.mtx")
    assert symmetric.edge_index.tolist() == skew.edge_index.tolist() == [[1, 2, 0, 1], [0, 1, 1, 2]]
    assert symmetric.edge_weight.tolist() == [5.5, -1.0, 5.5, -1.0]
    assert skew.edge_weight.tolist() == [5.5, -1.0, -5.5, 1.0]


@pytest.mark.parametrize(
    "text, message",
    [
        ("%%MatrixMarket matrix array real general\n1 1\n1\n", "first line must be"),
        ("%%MatrixMarket matrix coordinate complex general\n1 1 0\n", "first line must be"),
        ("%%MatrixMarket matrix coordinate real general\n2 3 0\n", "must be square, got 2 x 3"),
        ("%%MatrixMarket matrix coordinate real general\n2 2\n", "size line must hold three integers, got '2 2'"),
        ("%%MatrixMarket matrix coordinate real general\n2 2 2\n1 2 1\n", "declares 2 entries, the file holds 1"),
        ("%%MatrixMarket matrix coordinate pattern general\n2 2 1\n1 3\n", r"line 3 is '1 3'.* lie in \[1, 2\]"),
    ],
)
def test_broken_matrix_market_files_are_named(tmp_path, text, message):
    (tmp_path / "bad.mtx").write_text(text)
    with pytest.raises(ValueError, match=message):
        data.mtx(tmp_path / "bad.mtx")


def test_matrix_market_without_entries_is_an_empty_graph(tmp_path):
    (tmp_path / "e.mtx").write_text("%%MatrixMarket matrix coordinate pattern general\n4 4 0\n")
    graph = data.mtx(tmp_path / "e.mtx", edges="undirected")
    assert (graph.num_nodes, graph.num_edges) == (4, 0)


def test_broken_npz_files_are_named(tmp_path):
    whole = {"adj_data": [1.0], "adj_indices": [1], "adj_indptr": [0, 1, 1], "adj_shape": [2, 2]}
    np.savez(tmp_path / "a.npz", **{k: v for k, v in whole.items() if k != "adj_shape"})
    with pytest.raises(ValueError, match="key adj_shape is missing, found adj_data, adj_indices, adj_indptr"):
        data.npz(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", **(whole | {"adj_indices": [2]}))
    with pytest.raises(ValueError, match=r"indices must lie in \[0, 2\), got 2 to 2"):
        data.npz(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", **(whole | {"adj_indptr": [0, 1]}))
    with pytest.raises(ValueError, match="indptr does not describe 2 rows"):
        data.npz(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", **(whole | {"adj_shape": [2, 5]}))
    with pytest.raises(ValueError, match="must be square, got 2 x 5"):
        data.npz(tmp_path / "d.npz")


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: data.planetoid("corra"), "name must be one of 'cora', 'citeseer', 'pubmed', got 'corra'"),
        (
            lambda: data.planetoid("cora", edges="directed"),
            "edges must be one of 'undirected', 'listed', got 'directed'",
        ),
        (lambda: data.npz("x.npz", features="some"), "features must be one of 'dense', 'sparse', 'none', got 'some'"),
        (lambda: data.load("zoo"), "name must be one of cora, .*, got 'zoo'"),
        (lambda: data.digits(k=0), r"k must lie in \[1, 1796\], got 0"),
    ],
)
def test_unknown_choices_are_listed(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"edge_index": torch.zeros(3, 2, dtype=torch.int64)}, r"edge_index must be \[2, E\] int64, got \(3, 2\)"),
        ({"edge_index": torch.zeros(2, 1)}, "got .* torch.float32"),
        ({"edge_index": torch.tensor([[0], [3]])}, r"edge_index must lie in \[0, 3\), got 3"),
        ({"edge_index": torch.tensor([[0], [-1]])}, r"edge_index must lie in \[0, 3\), got -1"),
        ({"x": torch.zeros(2, 5)}, r"x must have 3 rows, got shape \(2, 5\)"),
        ({"y": torch.zeros(4)}, r"y must have 3 rows, got shape \(4,\)"),
        ({"edge_weight": torch.zeros(2)}, r"edge_weight must have 1 rows, got shape \(2,\)"),
    ],
)
def test_graph_data_rejects_tensors_that_do_not_fit(fields, message):
    good = {"edge_index": torch.tensor([[0], [1]]), "num_nodes": 3, "name": "bad"}
    with pytest.raises(ValueError, match=message):
        data.GraphData(**(good | fields))
