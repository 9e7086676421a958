"""The example of torch-flexattn runs on a few short rows, and says what it needs."""

import importlib
import re
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ["--length", "300", "--width", "16", "--heads", "2", "--layers", "1", "--rows", "2"]
SMALL += ["--threads", str(torch.get_num_threads())]


@pytest.fixture
def example(monkeypatch):
    """The example as its own script would see it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("flexattn_wikitext_lm")


@pytest.fixture
def articles(tmp_path):
    """Two files like those of WikiText-2, of three articles each."""
    folder = tmp_path / "wikitext-2"
    folder.mkdir()
    lines = "the cat sat on the mat , and the dog sat on the log . \n" * 6
    one = f" \n = {{}} = \n \n{lines} = = Section = = \n ends \n"
    for name in ("valid.txt", "test.txt"):
        (folder / name).write_text("".join(one.format(title) for title in ("Cats", "Dogs", "Mats and logs")))
    return tmp_path


def losses(printed):
    return [float(found) for found in re.findall(r"test loss (\d+\.\d+) nats", printed)]


def test_both_kinds_of_attention_train_alike(example, articles, capsys):
    found = []
    for kind in ("flex", "dense"):
        assert example.main(["--steps", "3", "--root", str(articles), "--attention", kind, *SMALL]) == 0
        found.append(losses(capsys.readouterr().out))
    assert len(found[0]) == 2
    assert found[0] == pytest.approx(found[1], abs=2e-3)


def test_the_loss_falls(example, articles, capsys):
    assert example.main(["--steps", "30", "--root", str(articles), *SMALL]) == 0
    before, after = losses(capsys.readouterr().out)
    assert after < before - 0.5


def test_an_article_does_not_see_the_one_before_it(example, articles):
    text = example.Text(example.load_wikitext_documents("valid", articles))
    start = int(text.starts[1]) + 20
    tokens, _, bounds = text.row(start, 420)
    assert len(bounds) == 3
    torch.manual_seed(0)
    model = example.LanguageModel(len(text.characters) + 1, 16, 2, 2)
    attend = example.attention_inside(bounds, 2, "flex")
    cut = int(bounds[1])
    other = tokens.clone()
    other[:cut] = tokens[:cut].flip(0)
    with torch.no_grad():
        first, second = model(tokens, attend), model(other, attend)
    torch.testing.assert_close(first[cut:], second[cut:])
    assert not torch.allclose(first[:cut], second[:cut])


@pytest.mark.data
def test_the_example_runs_on_wikitext(example, data_root, capsys):
    if not (data_root / "wikitext-2" / "valid.txt").is_file():
        pytest.skip("no wikitext-2 in the data folder")
    assert example.main(["--steps", "2", "--root", str(data_root), *SMALL]) == 0
    printed = capsys.readouterr().out
    assert "60 articles" in printed
    assert len(losses(printed)) == 2


def test_missing_files_are_named(example, tmp_path, capsys):
    assert example.main(["--root", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "valid.txt" in said
    assert "--root" in said


def test_sizes_that_do_not_fit_are_named(example, capsys):
    with pytest.raises(SystemExit):
        example.main(["--width", "10", "--heads", "3"])
    assert "--width must be a multiple of --heads, got 10 and 3" in capsys.readouterr().err


def test_the_mask_of_the_whole_split_is_told(example, articles, capsys):
    assert example.main(["--steps", "1", "--device", "cpu", "--root", str(articles), *SMALL]) == 0
    text = example.Text(example.load_wikitext_documents("test", articles))
    printed = capsys.readouterr().out
    assert f"mask of all {len(text.tokens):,} characters of the test split: {blocks_of(text)} blocks" in printed


def blocks_of(text):
    length = len(text.tokens)
    i, article = torch.arange(length), torch.bucketize(torch.arange(length), text.starts[1:], right=True)
    seen = (i[:, None] >= i) & (article[:, None] == article)
    tiles = [tile for rows in seen.split(128) for tile in rows.split(128, 1)]
    full = sum(bool(tile.all()) for tile in tiles)
    return f"{sum(bool(tile.any()) for tile in tiles) - full} partial and {full} full"


def test_a_device_that_is_not_there_is_named(example, capsys):
    with pytest.raises(SystemExit):
        example.main(["--device", "abacus"])
    assert "--device abacus cannot be used" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_it_trains_on_a_gpu(example, articles, capsys):
    found = []
    for device in ("cpu", "cuda"):
        assert example.main(["--steps", "3", "--root", str(articles), "--device", device, *SMALL]) == 0
        found.append(losses(capsys.readouterr().out)[0])  # before the first step: drawn on the CPU in both
    assert found[0] == pytest.approx(found[1], abs=2e-3)
