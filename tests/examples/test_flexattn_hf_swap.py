"""The example that swaps attention of transformers' models says what is equal, and what is not."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", minversion="5.4", reason="transformers is not installed here")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ["--length", "40", "--steps", "4"]


@pytest.fixture
def example(monkeypatch):
    """The example as its own script would see it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("flexattn_hf_swap")


def test_three_models_say_the_same(example, capsys):
    assert example.main(SMALL) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == ["model", "Llama,", "Gemma", "GPT-OSS,"]
    assert all(line.endswith("equal, equal") for line in printed[1:])


def test_a_difference_is_an_error(example, capsys, monkeypatch):
    import torch_flexattn_transformers as ours
    from transformers import AttentionInterface

    def turned(*inputs, **options):
        return -ours.attention(*inputs, **options)[0], None

    monkeypatch.setitem(AttentionInterface._global_mapping, ours.NAME, turned)
    assert example.main(SMALL) == 1
    said = capsys.readouterr()
    assert "DIFFER" in said.out
    assert "above --tolerance 1.0e-05" in said.err


def test_a_model_of_ones_own_is_loaded_from_its_folder(example, capsys, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<unk>", "the", "mask", "of", "a", "model"]
    spell = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    spell.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=spell, pad_token="<pad>", unk_token="<unk>").save_pretrained(tmp_path)
    torch.manual_seed(0)
    next(iter(example.small_models().values()))().save_pretrained(tmp_path)
    arguments = ["--model", str(tmp_path), "--prompt", "the mask of a model", "--steps", "3"]
    assert example.main(arguments) == 0
    assert str(tmp_path) in capsys.readouterr().out


def test_what_is_missing_is_named(example, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_flexattn_transformers", None)
    with pytest.raises(SystemExit):
        example.main(SMALL)
    assert "pip install ./packages/torch-flexattn ./integrations/transformers" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        example.main(["--steps", "1"])
    assert "--steps must be at least 3, got 1" in capsys.readouterr().err
