"""The molecules that come with RDKit: what the first ones are is known, and what RDKit cannot read is said."""

import sys
import warnings

import pytest
import torch
from torch_tcgnn import data


@pytest.fixture
def rdkit():
    return pytest.importorskip("rdkit", reason="extra: rdkit")


@pytest.fixture
def smiles(rdkit, monkeypatch, tmp_path):
    """Puts lines in place of RDKit's file."""

    def write(*lines):
        (tmp_path / "NCI").mkdir()
        (tmp_path / "NCI" / "first_5K.smi").write_text("".join(f"{line}\t{i}\n" for i, line in enumerate(lines)))
        monkeypatch.setattr("rdkit.RDConfig.RDDataDir", str(tmp_path))

    return write


def test_atoms_and_bonds_of_a_small_molecule(smiles):
    smiles("C", "[O-]C=O")
    graph = data.nci()
    assert graph.edge_index.tolist() == [[2, 1, 3, 2], [1, 2, 2, 3]]
    assert graph.batch.tolist() == [0, 1, 1, 1]
    carbon, oxygen = [1.0] + [0.0] * 10, [0.0, 0.0, 1.0] + [0.0] * 8
    assert graph.x.tolist() == [
        [*carbon, 0, 4, 0],
        [*oxygen, -1, 0, 0],
        [*carbon, 0, 1, 0],
        [*oxygen, 0, 0, 0],
    ]  # element, charge, hydrogens, aromatic
    single, double = [1.0, 0, 0, 0, 0], [0, 0, 1.0, 0, 0]
    assert graph.edge_attr.tolist() == [single, single, double, double]


def test_aromatic_rings_and_rare_elements_have_their_columns(smiles):
    smiles("c1ccccc1", "[Fe]")
    graph = data.nci()
    assert graph.edge_attr[:, 1].tolist() == [1.0] * 12
    assert graph.x[:, 13].tolist() == [1.0] * 6 + [0.0]
    assert graph.x[6, :11].tolist() == [0.0] * 10 + [1.0]


def test_unreadable_smiles_are_counted_and_named(smiles, capfd):
    smiles("C", "CF(C)C", "CC", "not one", "CCC")
    with pytest.warns(UserWarning, match=r"cannot read 2 of 5 SMILES, .* \(lines 2, 4 of first_5K\.smi\)"):
        graph = data.nci()
    assert (graph.num_graphs, graph.num_nodes) == (3, 6)
    assert capfd.readouterr().err == ""


def test_the_file_of_the_wheel_is_one_clean_batch(rdkit):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the first lines can all be read
        graph = data.nci(molecules=300)
    source, target = graph.edge_index
    key = target * graph.num_nodes + source
    assert (graph.name, graph.num_graphs) == ("nci", 300)
    assert bool((key.diff() > 0).all()), "sorted by target, then source; nothing twice"
    assert torch.equal(key, (source * graph.num_nodes + target).sort()[0]), "both directions"
    assert torch.equal(graph.batch[source], graph.batch[target])
    assert graph.x[:, :11].sum(1).unique().tolist() == [1.0]
    assert graph.edge_attr.sum(1).unique().tolist() == [1.0]


def test_the_catalogue_has_them_all(rdkit):
    with pytest.warns(UserWarning, match="nci: RDKit cannot read"):
        graph = data.load("nci")
    assert graph.num_graphs > 4_900
    assert "nci" in data.NAMES


@pytest.mark.parametrize(
    ("molecules", "error", "message"),
    [
        (0, ValueError, "molecules must be at least 1, got 0"),
        (2.5, TypeError, r"molecules must be an integer, got 2\.5"),
        (9, ValueError, "molecules must be at most 2, the number RDKit reads in .*, got 9"),
    ],
)
def test_a_wrong_number_of_molecules_is_named(smiles, molecules, error, message):
    smiles("C", "CC")
    with pytest.raises(error, match=message):
        data.nci(molecules=molecules)


def test_without_rdkit_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(ImportError, match=r"pip install 'torch-tcgnn\[rdkit\]'"):
        data.nci()


def test_an_rdkit_without_its_data_is_said(rdkit, monkeypatch, tmp_path):
    monkeypatch.setattr("rdkit.RDConfig.RDDataDir", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="this RDKit comes without its molecules"):
        data.nci()
