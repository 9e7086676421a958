"""``bench --deterministic``: the bits of every run are compared, and runs that differ are found."""

from __future__ import annotations

import json

import pytest
import torch
from torch_flexattn.bench import contenders, masks, repeat, suites
from torch_flexattn.cli import main

CPU = torch.device("cpu")
SMALL = suites.Attend("causal", 1, 2, 1, 48, 48, 16)
LINE = ["bench", "--quick", "--device", "cpu", "--deterministic"]


def changed_in_run(change, number):
    """Ours, but what the given call returns is changed."""
    plain, calls = contenders.ours, iter(range(1000))

    def ours(task, deterministic=None):
        run = plain(task, deterministic=deterministic)
        return lambda: change(run()) if next(calls) == number else run()

    return ours


@pytest.mark.parametrize("suite", ["gym", "decode", "paged", "mask", "biasgrad"])
def test_equal_bits_are_said_and_written(suite, capsys, tmp_path):
    path = tmp_path / "bits.json"
    assert main([*LINE, "--suite", suite, "--repeat", "3", "--json", str(path)]) == 0
    rows = capsys.readouterr().out.splitlines()
    count = len(repeat.repeated_cases(suites.SUITES[suite](True)))
    assert rows[-1] == f"{count} of {count} cases gave equal bits in 3 runs"
    assert all(row.endswith("  3  equal") for row in rows[1:-1])
    found = json.loads(path.read_text())
    assert (found["deterministic"], found["repeat"], found["equal"], found["suite"]) == (True, 3, True, suite)
    assert len(found["cases"]) == count
    assert all(case["equal"] and case["runs"] == 3 for case in found["cases"])


def test_calls_are_made_deterministic_and_in_both_passes(monkeypatch):
    asked, plain = [], contenders.flex_attention

    def attention(*arguments, deterministic=None, **named):
        asked.append((deterministic, torch.is_grad_enabled()))
        return plain(*arguments, deterministic=deterministic, **named)

    monkeypatch.setattr(contenders, "flex_attention", attention)
    result = repeat.repeat(SMALL, CPU, torch.float32, 2)
    assert asked == [(True, False), (True, True)] * 2
    assert (result.is_equal, result.kernel, result.name) == (True, "cpu/cpu", "both/causal/b1/h2-1/s48/d16")


@pytest.mark.parametrize(
    "call, what",
    [
        (2, {"output without gradients"}),
        (3, {"output", "gradient of query", "gradient of key", "gradient of value", "gradient of captured tensor 0"}),
    ],
)
def test_what_differs_is_named_and_is_a_failure(call, what, monkeypatch, capsys, tmp_path):
    # Calls 0 and 1 are the first run: without gradients, and with.
    monkeypatch.setattr(contenders, "ours", changed_in_run(lambda out: out * out, call))
    path = tmp_path / "bits.json"
    line = [*LINE, "--suite", "biasgrad", "--only", "*/t5_bias/*", "--repeat", "4", "--json", str(path)]
    assert main(line) == 1
    printed = capsys.readouterr().out
    assert "0 of 1 cases gave equal bits in 4 runs" in printed
    (case,) = json.loads(path.read_text())["cases"]
    assert set(case["differing"]) == what
    assert not case["equal"]
    assert all(words.startswith("in 1 of 4 runs, at most ") for words in case["differing"].values())
    assert f"differ: {next(iter(case['differing']))} in 1 of 4 runs" in printed


def test_one_number_of_many_is_enough(monkeypatch):
    def nudged(out):
        out = out.detach().clone()
        out[0, 0, 0, 0] = torch.nextafter(out[0, 0, 0, 0], torch.tensor(9.0))
        return out

    monkeypatch.setattr(contenders, "ours", changed_in_run(nudged, 4))
    result = repeat.repeat(SMALL, CPU, torch.float32, 3)
    assert result.differing == {"output without gradients": "in 1 of 3 runs, at most 1 of 1,536 numbers"}


def test_masks_that_differ_are_found(monkeypatch):
    plain, calls = masks.ours, iter(range(100))

    def ours(case, device):
        other = suites.Build("sliding_window", case.length)
        return lambda: plain(other if next(calls) == 1 else case, device)()

    monkeypatch.setattr(masks, "ours", ours)
    assert "blocks" in repeat.repeat(suites.Build("causal", 512), CPU, torch.float32, 3).differing


def test_a_failure_is_no_equality(monkeypatch, capsys):
    def fails(task, deterministic=None):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(contenders, "ours", fails)
    assert main([*LINE, "--suite", "decode"]) == 1
    printed = capsys.readouterr().out
    assert "failed: RuntimeError: out of luck" in printed
    assert "0 of 2 cases gave equal bits in 20 runs" in printed


def test_bits_are_compared_and_not_values():
    zero, nan = torch.zeros(3), torch.full((3,), float("nan"))
    assert repeat.differing_numbers(zero, -zero) == 3
    assert repeat.differing_numbers(nan, nan.clone()) == 0
    assert repeat.differing_numbers(zero.bfloat16(), zero.bfloat16()) == 0
    assert repeat.differing_numbers(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.5, 3.0])) == 1


def test_a_case_that_differs_by_the_pass_alone_is_repeated_once():
    cases = suites.gym(False)
    assert 2 * len(repeat.repeated_cases(cases)) == len(cases)
    assert len({repeat.name_of(case) for case in repeat.repeated_cases(suites.paper(False))}) == len(
        repeat.repeated_cases(suites.paper(False))
    )
