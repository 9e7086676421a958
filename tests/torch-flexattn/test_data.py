"""Loaders of real data: the counts of the files, and errors that name the line."""

from __future__ import annotations

import pytest
import torch
from torch_flexattn import DataFormatError
from torch_flexattn.data import load_llm_trace, load_prefix_trace, load_wikitext_documents, pack_documents
from torch_flexattn.data.locate import locate

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
REQUEST = '{"timestamp": 5, "input_length": 600, "output_length": 3, "hash_ids": [0, 4]}\n'


def folder_of(data_root, name):
    if not (data_root / name).is_dir():
        pytest.skip(f"no {name} in the data folder")
    return data_root


@pytest.mark.data
@pytest.mark.parametrize(
    "which,requests,prompt,output", [("code", 8_819, 18_059_974, 245_896), ("conv", 19_366, 22_361_870, 4_088_665)]
)
def test_the_llm_trace_has_the_published_counts(data_root, which, requests, prompt, output):
    trace = load_llm_trace(which, folder_of(data_root, "azure-llm-trace-2023"))
    assert (len(trace), int(trace.prompt_tokens.sum()), int(trace.output_tokens.sum())) == (requests, prompt, output)
    assert float(trace.arrival_s[0]) == 0
    assert bool((trace.arrival_s.diff() >= 0).all())


@pytest.mark.data
def test_the_prefix_trace_has_the_published_counts(data_root):
    trace = load_prefix_trace(folder_of(data_root, "mooncake-conversation-trace"))
    assert (len(trace), trace.blocks.numel(), trace.blocks.unique().numel()) == (12_031, 288_500, 182_790)
    assert int(trace.prompt_tokens.sum()) == 144_793_823
    assert int(trace.starts[-1]) == 288_500
    assert trace.blocks_of(1)[:3].tolist() == [0, 14, 15]


@pytest.mark.data
@pytest.mark.parametrize("split,articles,tokens", [("valid", 60, 216_347), ("test", 62, 244_102)])
def test_wikitext_has_the_published_counts(data_root, split, articles, tokens):
    found = load_wikitext_documents(split, folder_of(data_root, "wikitext-2"))
    assert len(found) == articles
    assert sum(len(line.split()) + 1 for text in found for line in text.split("\n") if line.split()) == tokens
    whole = (data_root / "wikitext-2" / f"{split}.txt").read_bytes().decode()
    assert whole.endswith("".join(found))
    assert not whole[: -len("".join(found))].strip()


def test_times_of_requests_are_seconds_after_the_first(tmp_path):
    lines = "2023-11-16 23:59:59.9000000,10,1\n2023-11-17 00:00:01.0000009,20,2\n2023-11-17 00:00:02,30,3\n"
    (tmp_path / "AzureLLMInferenceTrace_code.csv").write_text(HEADER + lines)
    trace = load_llm_trace("code", tmp_path)
    torch.testing.assert_close(trace.arrival_s, torch.tensor([0, 1.1, 2.1], dtype=torch.float64))
    assert trace.prompt_tokens.tolist() == [10, 20, 30]


@pytest.mark.parametrize(
    "text,line",
    [
        ("a,b\n", 1),
        (HEADER + "2023-11-16 18:15:46,1\n", 2),
        (HEADER + "2023-11-16 18:15:46,1,1\nnever,1,1", 3),
        (HEADER + "2023-11-16 18:15:46,1,-4\n", 2),
    ],
)
def test_a_malformed_request_is_named_by_its_line(tmp_path, text, line):
    (tmp_path / "AzureLLMInferenceTrace_conv.csv").write_text(text)
    with pytest.raises(DataFormatError, match=f"line {line}: expected"):
        load_llm_trace("conv", tmp_path)


@pytest.mark.parametrize(
    "second,says",
    [
        ("{", "line 2: expected an object"),
        (REQUEST.replace("5", '"5"', 1), "line 2: expected an object"),
        (REQUEST.replace("[0, 4]", "[0]"), "line 2: input_length 600 makes 2 blocks of 512 tokens, got 1 hash_ids"),
    ],
)
def test_a_malformed_prompt_is_named_by_its_line(tmp_path, second, says):
    (tmp_path / "conversation_trace.jsonl").write_text(REQUEST + second)
    with pytest.raises(DataFormatError, match=says):
        load_prefix_trace(tmp_path)


def test_sections_are_no_articles_and_text_before_a_title_is_an_error(tmp_path):
    path = tmp_path / "valid.txt"
    path.write_text(" \n = A = \n = = B = = \n text = 3 \n = C = D = \n x")
    first, second = load_wikitext_documents("valid", tmp_path)
    assert first.splitlines()[1] == " = = B = = "
    assert second == " = C = D = \n x"
    path.write_text(" \n words \n = A = \n")
    with pytest.raises(DataFormatError, match=r"line 2: .* got 'words'"):
        load_wikitext_documents("valid", tmp_path)
    path.write_text(" \n \n")
    with pytest.raises(DataFormatError, match="line 1"):
        load_wikitext_documents("valid", tmp_path)


def test_files_are_looked_for_in_root_alone_then_in_the_environment(tmp_path, monkeypatch):
    inside, environment = tmp_path / "a" / "wikitext-2", tmp_path / "b" / "wikitext-9"
    for folder in (inside, environment):
        folder.mkdir(parents=True)
        (folder / "test.txt").touch()
    monkeypatch.setenv("TORCH_EXT_DATA", str(tmp_path / "b"))
    assert locate("wikitext-2", "test.txt", tmp_path / "a") == inside / "test.txt"
    assert locate("wikitext-9", "test.txt") == environment / "test.txt"
    with pytest.raises(FileNotFoundError, match="TORCH_EXT_DATA"):
        locate("wikitext-9", "test.txt", tmp_path / "a")


@pytest.mark.parametrize("how", ["cut", "whole"])
def test_packing_keeps_every_token_once_and_no_row_overflows(how):
    lengths = torch.randint(0, 40, (60,), generator=torch.Generator().manual_seed(0)).tolist()
    rows = pack_documents(lengths, 25, how=how)
    seen = sorted((p.document, t) for row in rows for p in row for t in range(p.start, p.stop))
    assert seen == [(d, t) for d, n in enumerate(lengths) for t in range(n)]
    sizes = [sum(p.stop - p.start for p in row) for row in rows]
    assert max(sizes) <= 25
    if how == "cut":
        assert set(sizes[:-1]) == {25}
    else:
        assert all(n > 25 or sum(p.document == d for row in rows for p in row) == 1 for d, n in enumerate(lengths) if n)
        assert len(rows) <= 1.1 * sum(lengths) / 25 + 1


def test_best_fit_leaves_least_room():
    rows = pack_documents([6, 5, 4, 3, 2], 10, how="whole")
    assert [[p.document for p in row] for row in rows] == [[0, 2], [1, 3, 4]]
