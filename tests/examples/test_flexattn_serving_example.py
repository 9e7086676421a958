"""The serving example replays small traces: it batches, preempts, shares; outputs are those of each request alone."""

import importlib
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

SHORT = ["--scale", "1", "--check", "99"]


@pytest.fixture
def example(monkeypatch):
    """The example as its own script would see it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("flexattn_serving")


@pytest.fixture
def azure(tmp_path):
    """Eight requests of Azure's kind: six at once, two later."""
    folder = tmp_path / "azure-llm-trace-2023"
    folder.mkdir()
    lengths = [(40, 20), (30, 25), (33, 9), (5, 30), (70, 3), (16, 17), (1, 1), (20, 12)]
    rows = [f"2023-11-16 18:15:{4 * (n // 6):02}.5000000,{p},{o}" for n, (p, o) in enumerate(lengths)]
    text = "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n"
    for which in ("conv", "code"):
        (folder / f"AzureLLMInferenceTrace_{which}.csv").write_text(text)
    return tmp_path


@pytest.fixture
def mooncake(tmp_path):
    """Five requests of Mooncake's kind; three begin with the same block, two of them with the same two."""
    folder = tmp_path / "mooncake-conversation-trace"
    folder.mkdir()
    requests = [
        (0, 1100, [0, 1, 2]),
        (3000, 1500, [0, 1, 3]),
        (3000, 700, [4, 5]),
        (6000, 900, [0, 6]),
        (9000, 20, [7]),
    ]
    lines = [
        json.dumps({"timestamp": when, "input_length": length, "output_length": 300, "hash_ids": blocks})
        for when, length, blocks in requests
    ]
    (folder / "conversation_trace.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def number(printed, pattern):
    return int(re.search(pattern, printed)[1].replace(",", ""))


def test_requests_are_preempted_where_pages_are_few_and_get_what_they_get_alone(example, azure, capsys):
    options = ["--trace", "azure-conv", "--root", str(azure), "--pages", "10", "--budget", "24", *SHORT]
    assert example.main(options) == 0
    printed, bar = capsys.readouterr()
    assert "8: 215 prompt and 117 output tokens" in printed
    preempted = number(printed, r"preemptions +(\d+),")
    assert preempted
    dropped, computed = number(printed, r"([\d,]+) tokens dropped"), 215 + 117 - 8  # the last is not run
    steps, each = re.search(r"steps +(\d+), ([\d.]+) tokens each", printed).groups()
    assert int(steps) * float(each) == pytest.approx(computed + dropped, abs=0.05 * int(steps))
    checked = re.search(r"equal to alone +(\d+) of 8 requests, of which (\d+) were preempted", printed)
    assert checked[1] == "8"
    assert 0 < int(checked[2]) <= preempted
    assert re.search(r"pages in use +\d+% on average, (90|100)% at most", printed)
    assert "8/8 requests" in bar
    assert bar.count("requests") == 1  # this is no terminal: one line, the last


def test_a_terminal_has_a_bar_that_grows(example, azure, capsys, monkeypatch):
    monkeypatch.setattr(example.sys.stderr, "isatty", lambda: True)
    assert example.main(["--trace", "azure-conv", "--root", str(azure), *SHORT]) == 0
    bar = capsys.readouterr().err
    assert bar.count("\r") > 8
    assert bar.endswith("\n")


def test_lengths_and_times_shrink_and_the_first_requests_are_taken(example, azure):
    requests = example.load("azure-code", str(azure), 7, 0.1, 0)
    assert [len(request.prompt) for request in requests] == [4, 3, 3, 1, 7, 2, 1]
    assert [request.output for request in requests] == [2, 2, 1, 3, 1, 2, 1]
    assert [request.arrival_s for request in requests] == pytest.approx([0] * 6 + [0.4])
    assert requests[0].prompt != example.load("azure-code", str(azure), 7, 0.1, 1)[0].prompt


def test_nobody_is_preempted_where_there_is_room(example, azure, capsys):
    assert example.main(["--trace", "azure-code", "--root", str(azure), "--pages", "40", *SHORT]) == 0
    printed = capsys.readouterr().out
    assert number(printed, r"preemptions +(\d+),") == 0
    assert number(printed, r"on average, (\d+) at most") == 6


def test_blocks_of_equal_names_are_equal_and_shared(example, mooncake, capsys):
    requests = example.load("mooncake", str(mooncake), 9, 0.05, 0)
    first, second, third, fourth, last = (request.prompt for request in requests)
    assert [len(first), len(second), len(fourth), len(last)] == [52 + 4, 52 + 24, 26 + 19, 1]
    assert first[:52] == second[:52]
    assert first[:26] == fourth[:26]
    assert first[26:39] != fourth[26:39]
    assert first[:26] != third[:26]
    options = ["--trace", "mooncake", "--root", str(mooncake), "--scale", "0.05", "--pages", "20", "--check", "9"]
    assert example.main(options) == 0
    printed = capsys.readouterr().out
    assert number(printed, r"(\d+) tokens not computed") == 52 + 26
    assert number(printed, r"shared pages +(\d+)") >= 3  # 52 tokens are three full pages and part of a fourth
    assert "5 of 5 requests" in printed
    assert example.main([*options, "--no-sharing"]) == 0
    printed = capsys.readouterr().out
    assert number(printed, r"(\d+) tokens not computed") == 0
    assert "5 of 5 requests" in printed


def served(example, requests, **options):
    """Tokens and record of requests, served by a small decoder."""
    example.torch.manual_seed(0)
    model = example.Decoder(example.TOKENS, width=16, heads=4, kv_heads=2, layers=1)
    caches = [example.PagedKVCache(8, 16, 2, 4, max_seqs=4)]
    return model, *example.replay(model, caches, example.ContinuousBatcher(caches, **options), requests, 0.5)


def test_requests_join_when_they_arrive(example):
    times = (2.0, 2.6, 50.0)
    requests = [example.Request(when, [1, 2, 3], 3) for when in times]
    _, tokens, record = served(example, requests)
    assert record.time_s == [2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 50.0, 50.5, 51.0, 51.5]
    assert record.running == [1, 1, 2, 1, 1, 0, 1, 1, 1, 0]
    assert record.used == [1, 1, 2, 1, 1, 0, 1, 1, 1, 0]
    assert record.steps == 8
    assert tokens[0] == tokens[1] == tokens[2]


def test_a_wrong_output_is_found(example):
    requests = [example.Request(0.0, example.random_tokens(30, n), 6) for n in range(2)]
    model, tokens, _ = served(example, requests)
    device = example.torch.device("cpu")
    assert tokens[0][30:] != tokens[1][30:]
    example.check(model, requests, tokens, [0, 1], device)
    tokens[1][-1] += 1
    example.check(model, requests, tokens, [0], device)
    with pytest.raises(AssertionError, match="request 1"):
        example.check(model, requests, tokens, [0, 1], device)


def test_what_a_request_gets_depends_on_what_lies_in_the_pages(example, monkeypatch):
    requests = [example.Request(0.0, example.random_tokens(30, n), 6) for n in range(2)]
    monkeypatch.setattr(example.PagedKVCache, "write", lambda *given: None)
    model, tokens, _ = served(example, requests)
    with pytest.raises(AssertionError, match="request 0"):
        example.check(model, requests, tokens, [0, 1], example.torch.device("cpu"))


def test_occupancy_is_told_for_each_tenth_of_the_time(example):
    record = example.Record(time_s=[0.0, 0.5, 1.0, 9.5, 10.0], used=[2, 4, 8, 1, 0])
    assert example.tenths(record, 10) == "30 80 - - - - - - - 5"


def test_those_that_were_preempted_are_checked_first(example):
    assert example.chosen(4, 10, {3, 8}) == [3, 8, 0, 5]
    assert example.chosen(2, 10, {3, 8, 9}) == [3, 8]
    assert example.chosen(99, 3, {1}) == [1, 0, 2]


def test_the_plot_shows_pages_and_requests_inside_their_panels(example, azure, tmp_path):
    picture = tmp_path / "serving.svg"
    options = ["--trace", "azure-conv", "--root", str(azure), "--pages", "10", "--plot", str(picture), *SHORT]
    assert example.main(options) == 0
    tree = ET.parse(picture).getroot()
    paths = [part.get("d") for part in tree.iter("{http://www.w3.org/2000/svg}path")]
    panels = [part for part in tree.iter("{http://www.w3.org/2000/svg}rect") if part.get("x")]
    assert (len(paths), len(panels)) == (3, 2)
    for path, panel in zip(paths, (panels[0], panels[1], panels[1])):
        left, top, width, height = (float(panel.get(name)) for name in ("x", "y", "width", "height"))
        across = [float(x) for x in re.findall(r"[MH]([\d.]+)", path)]
        down = [float(y) for y in re.findall(r"(?:M[\d.]+ |V)([\d.]+)", path)]
        assert across == sorted(across)
        assert (across[0], across[-1]) == (left, left + width)
        assert top <= min(down) < max(down) <= top + height
    words = [part.text for part in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert {"pages", "in use", "running", "waiting"} <= set(words)


@pytest.mark.parametrize(
    "trace, file", [("azure-conv", "AzureLLMInferenceTrace_conv.csv"), ("mooncake", "conversation")]
)
def test_missing_files_are_named(example, trace, file, tmp_path, capsys):
    assert example.main(["--trace", trace, "--root", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert file in said
    assert "--root" in said


def test_options_that_do_not_fit_are_named(example, azure, capsys):
    for options, said in (
        (["--pages", "0"], "--pages must be at least 1, got 0"),
        (["--scale", "0"], "--scale must be above 0, got 0.0"),
        (["--page-size", "24"], "--page-size must be a power of two, at least 16, got 24"),
        (["--plot", "serving.gif"], "--plot must end in .svg, got 'serving.gif'"),
    ):
        with pytest.raises(SystemExit):
            example.main(options)
        assert said in capsys.readouterr().err
    assert example.main(["--root", str(azure), "--pages", "4", *SHORT]) == 2
    assert "--pages must be at least 5, which the longest request needs, got 4" in capsys.readouterr().err


@pytest.mark.gpu
def test_the_example_runs_on_a_gpu(example, azure, capsys):
    options = ["--trace", "azure-conv", "--root", str(azure), "--pages", "10", "--budget", "24", "--device", "cuda"]
    assert example.main([*options, *SHORT]) == 0
    printed = capsys.readouterr().out
    assert number(printed, r"preemptions +(\d+),")
    assert "8 of 8 requests" in printed


@pytest.mark.data
@pytest.mark.parametrize("trace", ["azure-conv", "azure-code", "mooncake"])
def test_the_example_runs_on_real_traces(example, data_root, trace, capsys):
    folder = "mooncake-conversation-trace" if trace == "mooncake" else "azure-llm-trace-2023"
    if not (data_root / folder).is_dir():
        pytest.skip(f"no {folder} in the data folder")
    assert example.main(["--trace", trace, "--root", str(data_root), "--requests", "12", "--check", "3"]) == 0
    printed = capsys.readouterr().out
    assert number(printed, r"requests +(\d+): ") == 12
    assert "3 of 3 requests" in printed
