"""The commands ``bench`` and ``tune``: cases, and that nobody is timed whose results are not ours."""

from __future__ import annotations

import json
import sys
import warnings

import pytest
import torch
from torch_flexattn.bench import contenders, race, suites, torch_peers
from torch_flexattn.bench.peer import Peer
from torch_flexattn.bench.task import make_task
from torch_flexattn.cli import main

CPU = torch.device("cpu")
SMALL = suites.Attend("causal", 1, 2, 1, 64, 64, 16)


def test_the_protocol_of_the_paper_has_its_cases():
    cases = suites.paper(False)
    names = {case.name for case in cases}
    assert len(names) == len(cases)
    assert "forward/causal/b64/h16-16/s1024/d64" in names
    assert "backward/causal/b4/h16-2/s131072/d64" in names
    assert not any("h16-16/s131072" in name or "h16-16/s1of131072" in name for name in names)  # the batch would be 0
    assert {c.mod for c in cases if c.keys == c.queries == 16384} == set(suites.MODS)
    assert all(4 * c.batch * c.kv_heads * c.keys * c.width <= suites.KV_BYTES for c in cases)


@pytest.mark.parametrize("name", suites.SUITES)
def test_every_suite_has_small_cases_of_its_own(name):
    whole, quick = (suites.SUITES[name](small) for small in (False, True))
    assert 0 < len(quick) < 10 <= 8 * len(whole)
    assert len({case.name for case in whole}) == len(whole)
    assert not {case.name for case in quick} & {case.name for case in whole}


@pytest.mark.parametrize("mod", [*suites.MODS, *suites.BIASES])
@pytest.mark.parametrize("queries", [1, 64])
def test_both_forms_of_a_modification_mean_the_same(mod, queries):
    task = make_task(suites.Attend(mod, 1, 2, 2, queries, 64, 16), CPU, torch.float32)
    of, offset = task.variant, task.offset
    i, j = torch.arange(queries)[:, None] + offset, torch.arange(64)
    scores = task.q @ task.k.transpose(2, 3) / 4
    h = torch.arange(2)[:, None, None]
    zero = torch.zeros((), dtype=torch.long)
    if of.plain_score is not None:
        scores = of.plain_score(scores, zero, h, i, j)
    if of.plain_mask is not None:
        scores = scores.masked_fill(~of.plain_mask(zero, h, i, j), float("-inf"))
    torch.testing.assert_close(contenders.ours(task)(), scores.softmax(-1) @ task.v)


def test_a_race_has_times_and_ratios():
    result = race.race(SMALL, ("math",), CPU, torch.float32, 3)
    assert result.errors == {}
    assert result.kernel == "cpu"
    assert result.speedup["math"] == pytest.approx(result.peers_ms["math"] / result.ours_ms)
    assert result.differences["math"] < 1e-5


@pytest.mark.parametrize("mod", ["sliding_window", "document"])
def test_queries_at_the_end_of_the_keys_mean_the_same_to_peers(mod):
    result = race.race(suites.Attend(mod, 1, 2, 2, 1, 400, 16), ("math",), CPU, torch.float32, 1)
    assert result.errors == {}


def test_peers_that_fail_or_differ_are_recorded_and_not_timed(monkeypatch):
    plain = torch_peers.sdpa("math")

    def wrong(task):
        return lambda: plain(task)() + 1

    def fails(task):
        raise RuntimeError("no such kernel\nat all")

    def late(task):
        calls = iter(range(3))
        return lambda: plain(task)() if next(calls) < 2 else fails(task)

    peers = {"wrong": Peer(wrong), "fails": Peer(fails), "late": Peer(late), "math": Peer(plain)}
    monkeypatch.setattr(contenders, "PEERS", peers)
    result = race.race(SMALL, tuple(peers), CPU, torch.float32, 2)
    assert set(result.peers_ms) == set(result.speedup) == {"math"}
    assert result.errors["wrong"].startswith("its results differ from ours by ")
    assert result.errors["fails"] == result.errors["late"] == "RuntimeError: no such kernel"
    assert result.rounds == {"ours": 2, "math": 2}


def test_what_was_compiled_is_forgotten_once_a_case(monkeypatch):
    told = []
    monkeypatch.setattr(race, "forget_compiled", lambda: told.append("forgotten"))
    race.race(SMALL, ("math", "flash"), CPU, torch.float32, 1, told.append)
    assert told == ["forgotten", "ours", "math", "flash", "all in turns"]


def test_what_a_peer_said_before_it_failed_is_kept(monkeypatch):
    def refuses(task):
        for words in ("Flash attention kernel not used because:", "no such head", "Math has been runtime disabled."):
            warnings.warn(f"{words} (Triggered internally at sdp.cpp:1.)", stacklevel=1)
        warnings.warn("old name", FutureWarning, stacklevel=1)
        raise RuntimeError("No available kernel.")

    monkeypatch.setitem(contenders.PEERS, "math", Peer(refuses))
    result = race.race(SMALL, ("math",), CPU, torch.float32, 1)
    assert result.errors == {"math": "RuntimeError: No available kernel. | no such head"}


def test_ours_failing_is_a_result_too(monkeypatch, capsys):
    def fails(task, deterministic=None):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(contenders, "ours", fails)
    assert main(["bench", "--suite", "decode", "--quick", "--device", "cpu", "--peers", "none"]) == 1
    printed = capsys.readouterr().out
    assert "failed" in printed
    assert "not measured: ours: RuntimeError: out of luck (forward/noop/b2/h6-2/s1of256/d32 and 1 more)" in printed


def test_the_command_prints_ratios_and_writes_what_it_measured(capsys, tmp_path):
    path = tmp_path / "found.json"
    line = ["bench", "--suite", "paged", "--quick", "--device", "cpu", "--json", str(path)]
    assert main(line) == 0
    head, *rows, mean = capsys.readouterr().out.splitlines()
    assert "ours ms" in head
    assert "contiguous ms (×)" in head
    assert len(rows) == 2
    assert all("×)" in row for row in rows)
    found = json.loads(path.read_text())
    assert (found["suite"], found["quick"], found["dtype"]) == ("paged", True, "float32")
    assert found["versions"]["torch"]
    assert [case["errors"] for case in found["cases"]] == [{}, {}]
    ratios = [case["speedup"]["contiguous"] for case in found["cases"]]
    assert found["geometric_means"]["paged"]["contiguous"] == pytest.approx((ratios[0] * ratios[1]) ** 0.5)
    assert mean.split() == ["geometric", "mean", f"({(ratios[0] * ratios[1]) ** 0.5:.2f}×)"]
    assert {case["suite"] for case in found["cases"]} == {"paged"}
    assert all(case["rounds"] == {"ours": 3, "contiguous": 3} for case in found["cases"])
    assert not list(tmp_path.glob("*.part"))


def test_suites_in_one_run_and_some_of_their_cases(capsys, tmp_path):
    path, plot = tmp_path / "found.json", tmp_path / "found.svg"
    line = [
        "bench",
        "--suite",
        "gym,decode",
        "--quick",
        "--device",
        "cpu",
        "--peers",
        "math",
        "--only",
        "forward/noop/*",
    ]
    assert main([*line, "--json", str(path), "--plot", str(plot)]) == 0
    printed = capsys.readouterr().out
    assert printed.index("suite gym") < printed.index("suite decode")
    found = json.loads(path.read_text())
    assert found["suite"] == "gym,decode"
    names = [(case["suite"], case["name"]) for case in found["cases"]]
    assert names == [("gym", "forward/noop/b1/h4-2/s256/d32"), ("decode", "forward/noop/b2/h6-2/s1of256/d32")]
    assert all(f">{name}</text>" in plot.read_text() for _, name in names)


def test_all_suites_in_one_run(capsys):
    line = ["bench", "--suite", "all", "--quick", "--device", "cpu", "--peers", "none", "--only", "*/noop/*"]
    assert main(line) == 0
    said = [row for row in capsys.readouterr().out.splitlines() if row.startswith("suite ")]
    assert said == ["suite gym", "suite decode", "suite paged"]


def test_a_terminal_is_told_who_is_next(capsys, monkeypatch):
    line = ["bench", "--suite", "decode", "--quick", "--device", "cpu", "--peers", "math"]
    assert main(line) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(line) == 0
    told = capsys.readouterr().err.split("\r\x1b[K")
    assert told[0] == told[-1] == ""
    for words in ("1/2", "2/2", "d32: ours", "d32: math", "d32: all in turns"):
        assert any(words in bar for bar in told)


def test_gradients_of_biases_are_compared_as_well(capsys):
    assert main(["bench", "--suite", "biasgrad", "--quick", "--device", "cpu", "--peers", "math"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("×)") == 5  # the heading, all but the scale of a head, and the mean
    assert "not measured: math: it has no place for head_scale (backward/head_scale/" in printed


def test_masks_are_raced_with_pytorchs(capsys):
    assert main(["bench", "--suite", "mask", "--quick", "--device", "cpu", "--peers", "torch_flex_eager"]) == 0
    assert capsys.readouterr().out.count("×)") == 6


def test_documents_of_a_mask_grow_with_its_length():
    documents = {c.length: c.documents for c in suites.mask(False) if c.mod == "document"}
    assert documents == {8192: 31, 131072: 500, 1 << 20: 4002}
    task = race.masks.ours(suites.Build("document", 512, 7), CPU)()
    assert task.nnz_blocks() != race.masks.ours(suites.Build("document", 512, 2), CPU)().nnz_blocks()


@pytest.mark.parametrize(
    "line, said",
    [
        (["--suite", "gym", "--peers", "math,fast"], "--peers: 'fast' is none of auto, all, none, torch_flex,"),
        (["--suite", "gym", "--device", "tpu9"], "--device: no device is called 'tpu9'"),
        (["--suite", "gym", "--device", "meta"], "--device must be cuda or cpu, got 'meta'"),
        (["--suite", "gym", "--quick", "--json", "nowhere/at/all.json"], "--json: there is no folder"),
        (["--suite", "gym", "--json", "."], "--json: . is a folder"),
        (["--suite", "gym", "--plot", "nowhere/at.svg"], "--plot: there is no folder"),
        (["--suite", "gym", "--plot", "speed.png"], "--plot must end in .svg, got 'speed.png'"),
        (["--suite", "best"], "--suite: 'best' is none of all, paper, gym,"),
        (["--suite", "gym,paper,gym"], "--suite: 'gym' is there more than once: 'gym,paper,gym'"),
        (["--suite", "gym", "--only", "forward"], "--only: no case is called 'forward'; they are called like forward/"),
        (["--suite", "gym", "--repeat", "3"], "--repeat is for --deterministic, got --repeat 3 without it"),
        (["--suite", "gym", "--repeat", "0"], "must be a whole number from 1"),
        (["--suite", "gym", "--deterministic", "--repeat", "1"], "--repeat must be at least 2, got 1"),
        (["--suite", "gym", "--deterministic", "--peers", "math"], "--peers is for times, got --peers math with"),
        (["--suite", "gym", "--deterministic", "--plot", "a.svg"], "--plot is for times, got --plot a.svg with"),
    ],
)
def test_wrong_options_are_named(line, said, capsys):
    assert main(["bench", *line]) == 2
    assert said in capsys.readouterr().err


def test_tune_says_that_a_cpu_has_nothing_to_tune(capsys):
    assert main(["tune", "--shape", "1,2,32,8", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.startswith("nothing to tune on cpu: ")


def test_tune_prints_what_it_timed_and_keeps_the_fastest(capsys, tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TORCH_FLEXATTN_CACHE", str(tmp_path))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    line = [
        "tune",
        "--shape",
        "1,4,2,16",
        "--kv-heads",
        "2",
        "--kv-seq",
        "40",
        "--dtype",
        "fp32",
        "--backend",
        "decode",
    ]
    assert main([*line, "--mask", "causal", "--score", "alibi(4)", "--device", device]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "group=2 L<=2 S<=64" in printed[0]
    times = [float(row.split()[0]) for row in printed[1:-1] if " ms " in row]
    assert times == sorted(times)
    assert len(times) > 2
    (kept,) = json.loads((tmp_path / "tuned.json").read_text())["winners"].values()
    assert kept["ms"] == pytest.approx(times[0], abs=1e-3)


@pytest.mark.parametrize(
    "line, said",
    [
        (["--shape", "1,2,3"], "--shape must be four sizes B,H,L,E of at least 1, got '1,2,3'"),
        (["--shape", "1,0,3,4"], "--shape must be"),
        (
            ["--shape", "1,2,3,4", "--mask", "softcap(2)"],
            "--mask must be a mask, got a score modification: 'softcap(2)'",
        ),
        (["--shape", "1,2,3,4", "--score", "causal"], "--score must be a score modification, got a mask: 'causal'"),
    ],
)
def test_wrong_specs_of_tune_are_named(line, said, capsys):
    assert main(["tune", *line, "--device", "cpu"]) == 2
    assert said in capsys.readouterr().err
