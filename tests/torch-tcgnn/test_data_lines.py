"""A malformed file is named with the line at fault, its number and its content."""

import re

import numpy as np
import pytest
from torch_tcgnn import data
from torch_tcgnn.cli import main

HEADER = "%%MatrixMarket matrix coordinate {} general\n% a comment\n"
TWO, THREE = "two integers separated by ','", "two integers and a number separated by white space"

TEXTS = {
    "word.csv": ("0,1\n1,x\n", f"line 2 must hold {TWO}, got '1,x'"),
    "short.csv": ("a,b\n0,1\n\n3\n", f"line 4 must hold {TWO}, got '3'"),
    "fraction.csv": ("0,1\n1.5,2\n", f"line 2 must hold {TWO}, got '1.5,2'"),
    "huge.csv": (f"0,1\n{10**20},2\n", f"line 2 must hold {TWO}, got '{10**20},2'"),
    "negative.csv": ("# edges\n0,1\n-1,2\n", "line 3 is '-1,2', but ids must lie in [0, 3)"),
    "semicolon.csv": ("0;1\n1;2\n", f"line 1 must hold {TWO}, got '0;1'"),
    "comment.csv": ("# x\n0,1\n1,z # c\n", f"line 3 must hold {TWO}, got '1,z'"),
    "word.txt": ("0 1\n1 b\n", "line 2 must hold two integers separated by white space, got '1 b'"),
    "word.mtx": (HEADER.format("real") + "3 3 2\n1 2 0.5\n2 x 1\n", f"line 5 must hold {THREE}, got '2 x 1'"),
    "columns.mtx": (HEADER.format("real") + "3 3 3\n1 2\n2 3\n3 1\n", f"line 4 must hold {THREE}, got '1 2'"),
    "mixed.mtx": (HEADER.format("real") + "3 3 2\n1 2 3\n2 3\n", f"line 5 must hold {THREE}, got '2 3'"),
    "zero.mtx": (HEADER.format("pattern") + "3 3 1\n0 1\n", "line 4 is '0 1', but its indices must lie in [1, 3]"),
    "over.mtx": (HEADER.format("integer") + "3 3 1\n9 1 1\n", "line 4 is '9 1 1', but its indices must lie in [1, 3]"),
    "fraction.mtx": (HEADER.format("pattern") + "3 3 1\n1.5 2\n", "line 4 must hold two integers"),
    "negative.mtx": (HEADER.format("pattern") + "-3 -3 0\n", "an adjacency must be square, got -3 x -3"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_line_at_fault_is_named(tmp_path, name, capsys):
    text, words = TEXTS[name]
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(f"{path}: {words}")):
        data.mtx(path) if name.endswith(".mtx") else data.edge_list(path, delimiter="," if "csv" in name else None)
    assert main(["tiles", str(path)]) == 2
    assert f"{path}: {words}" in capsys.readouterr().err


def test_lines_of_tu_and_planetoid_files_are_named(tmp_path):
    for part, text in (("A", "1, 2\n2 1\n"), ("graph_indicator", "1\n1\n"), ("graph_labels", "1\n")):
        (tmp_path / f"TOY_{part}.txt").write_text(text)
    with pytest.raises(ValueError, match=f"TOY_A.txt: line 2 must hold {TWO}, got '2 1'"):
        data.tu("TOY", tmp_path)


BYTES = {
    "binary.csv": (b"\x00\xff\xfe\x80", "can't decode byte"),
    "binary.mtx": (b"\x80\x81\x00", "can't decode byte"),
    "plain.csv.gz": (b"hello", "Not a gzipped file"),
    "cut.mtx.gz": (b"\x1f\x8b\x08zz", "Compressed file ended"),
    "text.npz": (b"hello", "not an .npz file, which is a zip archive of arrays"),
    "cut.npz": (b"PK\x03\x04abc", "File is not a zip file"),
    "empty.npz": (b"", "not an .npz file"),
}


@pytest.mark.parametrize("name", BYTES)
def test_a_file_of_another_kind_is_named(tmp_path, name):
    content, words = BYTES[name]
    path = tmp_path / name
    path.write_bytes(content)
    read = data.npz if "npz" in name else data.mtx if "mtx" in name else data.edge_list
    with pytest.raises(ValueError, match=re.escape(f"{path}: ") + ".*" + re.escape(words)):
        read(path)


RIGHT = {"adj_data": [1, 1], "adj_indices": [1, 2], "adj_indptr": [0, 1, 2, 2], "adj_shape": [3, 3]}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"adj_shape": [3]}, r"adj_shape must hold two numbers, got \[3\]"),
        ({"adj_indptr": [0, 1]}, "indptr does not describe 3 rows of 2 entries"),
        ({"adj_indices": [1, 9]}, r"indices must lie in \[0, 3\), got 1 to 9"),
        ({"adj_indices": [1.0, 2.0]}, r"indices must be a list of integers, got shape \(2,\) of float64"),
        ({"adj_data": ["a", "b"]}, "data must be a list of numbers, got shape"),
        ({"adj_data": 1}, r"data must be a list of numbers, got shape \(\)"),
        ({"labels": [1, 2]}, r"y must have 3 rows, got shape \(2,\)"),
    ],
)
def test_arrays_that_do_not_fit_name_their_file(tmp_path, change, words):
    path = tmp_path / "graph.npz"
    np.savez(path, **(RIGHT | change))
    with pytest.raises(ValueError, match=re.escape(f"{path}: ") + words):
        data.npz(path)


@pytest.mark.parametrize("command", ["tiles", "inspect"])
def test_an_unknown_graph_names_those_there_are_and_how_to_give_a_file(command, capsys):
    assert main([command, "corra"]) == 2
    said = capsys.readouterr().err
    assert "unknown graph 'corra' (did you mean 'cora'?): give a file ending in .npz, .mtx, .csv or .txt (.gz)" in said
    assert "cora, citeseer, pubmed" in said
    assert "artist-like" in said


def test_results_that_cannot_be_saved_are_refused_before_the_work(tmp_path, capsys):
    for path in (tmp_path, tmp_path / "missing" / "out.json"):
        assert main(["bench", "--quick", "--json", str(path)]) == 2
        said = capsys.readouterr().err
        assert f"--json {path}: must be a file in a folder that exists" in said
        assert "bench 1/" not in said
