"""What the demo trains on: molecules packed into rows, and the share of strings that are molecules."""

import pytest
import torch

pytest.importorskip("rdkit", reason="the molecules come with RDKit")

from torch_flexattn.demo import molecules

STRINGS = ["CCO", "c1ccccc1", "N", "CC(=O)O"]


@pytest.fixture(scope="module")
def packed():
    return molecules.pack(STRINGS, molecules.vocabulary(STRINGS), 14)


def test_a_row_holds_whole_molecules_and_is_filled_up(packed):
    characters = list(molecules.vocabulary(STRINGS))
    text = ["".join(characters[n] for n in row) for row in packed.tokens.tolist()]
    assert text == ["\nCCO\nc1ccccc1\n\n", "\nN\nCC(=O)O\n\n\n\n\n"]
    assert packed.document.tolist() == [[0] * 4 + [1] * 9 + [2], [0] * 2 + [1] * 8 + [2] * 4]
    assert packed.place[0].tolist() == [*range(4), *range(9), 0]


def test_the_end_of_a_molecule_is_predicted_and_the_filling_is_not(packed):
    assert packed.counted.sum(1).tolist() == [13, 10]
    following = packed.tokens[:, 1:][packed.counted]
    assert int((following == 0).sum()) == len(STRINGS)


def test_every_character_of_the_file_has_a_number():
    strings = molecules.smiles()
    assert len(strings) == 4999
    assert set("".join(strings)) <= molecules.vocabulary(strings).keys()


def test_only_molecules_count_as_valid(capfd):
    assert molecules.valid(["CCO", "", "c1ccccc", "N", "C(("]) == 2
    assert "Error" not in capfd.readouterr().err, "RDKit explains nothing on the terminal"


def test_what_the_model_says_of_a_molecule_does_not_depend_on_its_neighbours(packed):
    from torch_flexattn import flex_attention
    from torch_flexattn.demo.language_model import LanguageModel
    from torch_flexattn.demo.walkthrough import _blocks

    torch.manual_seed(0)
    model = LanguageModel(len(molecules.vocabulary(STRINGS)), 14)
    block_mask = _blocks(packed.document[:1])
    tokens = packed.tokens[:1, :-1]
    other = tokens.clone()
    other[0, :4] = tokens[0, :4].flip(0)
    said = [
        model(t, packed.place[:1], lambda q, k, v: flex_attention(q, k, v, block_mask=block_mask))
        for t in (tokens, other)
    ]
    torch.testing.assert_close(said[0][0, 4:13], said[1][0, 4:13])
    assert not torch.allclose(said[0][0, :4], said[1][0, :4])
