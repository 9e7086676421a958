"""The command ``bench``: its cases, who takes part, and that nobody is timed whose results are not ours."""

from __future__ import annotations

import json

import pytest
import torch
from torch_flexattn.bench import contenders, race, suites
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
    def wrong(task):
        return lambda: contenders.sdpa("math")(task)() + 1

    def fails(task):
        raise RuntimeError("no such kernel\nat all")

    def late(task):
        calls = iter(range(3))
        return lambda: contenders.sdpa("math")(task)() if next(calls) < 2 else fails(task)

    peers = {"wrong": wrong, "fails": fails, "late": late, "math": contenders.sdpa("math")}
    monkeypatch.setattr(contenders, "PEERS", peers)
    result = race.race(SMALL, (*peers, "contiguous"), CPU, torch.float32, 2)
    assert set(result.peers_ms) == set(result.speedup) == {"math"}
    assert result.errors["wrong"].startswith("its results differ from ours by ")
    assert result.errors["fails"] == result.errors["late"] == "RuntimeError: no such kernel"
    assert result.errors["contiguous"] == "takes no part in such a case"


def test_ours_failing_is_a_result_too(monkeypatch, capsys):
    def fails(task):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(contenders, "ours", fails)
    assert main(["bench", "--suite", "decode", "--quick", "--device", "cpu", "--peers", "none"]) == 1
    printed = capsys.readouterr().out
    assert "failed" in printed
    assert "ours: RuntimeError: out of luck (forward/noop/b2/h6-2/s1of256/d32 and 1 more)" in printed


def test_the_command_prints_ratios_and_writes_what_it_measured(capsys, tmp_path):
    path = tmp_path / "found.json"
    line = ["bench", "--suite", "paged", "--quick", "--device", "cpu", "--json", str(path)]
    assert main(line) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert "ours ms" in head
    assert "contiguous ms (×)" in head
    assert len(rows) == 2
    assert all("×)" in row for row in rows)
    found = json.loads(path.read_text())
    assert (found["suite"], found["quick"], found["dtype"]) == ("paged", True, "float32")
    assert found["versions"]["torch"]
    assert [case["errors"] for case in found["cases"]] == [{}, {}]
    assert all(case["speedup"]["contiguous"] > 0 for case in found["cases"])


def test_gradients_of_biases_are_compared_as_well(capsys):
    assert main(["bench", "--suite", "biasgrad", "--quick", "--device", "cpu", "--peers", "math"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("×)") == 4  # the heading, and all but the scale of a head
    assert "math: NotImplementedError: it has no place for head_scale" in printed


def test_masks_are_raced_with_pytorchs(capsys):
    assert main(["bench", "--suite", "mask", "--quick", "--device", "cpu", "--peers", "torch_flex_eager"]) == 0
    assert capsys.readouterr().out.count("×)") == 5


@pytest.mark.parametrize(
    "line, said",
    [
        (["--suite", "gym", "--peers", "math,fast"], "--peers: 'fast' is none of torch_flex, cudnn,"),
        (["--suite", "gym", "--device", "tpu9"], "--device: no device is called 'tpu9'"),
        (["--suite", "gym", "--device", "meta"], "--device must be cuda or cpu, got 'meta'"),
        (["--suite", "gym", "--quick", "--json", "nowhere/at/all.json"], "--json: there is no folder"),
        (["--suite", "best"], "invalid choice: 'best'"),
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
