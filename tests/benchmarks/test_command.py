"""The command line, on a toy package declared on the fly."""

import doctest
import importlib
import pkgutil
import sys
import types

import pytest

import benchmarks
from benchmarks import provenance
from benchmarks.__main__ import main
from benchmarks.case import Fact
from benchmarks.result import load


@pytest.fixture
def toy(toy_case, monkeypatch):
    """`benchmarks.torch_toy`, with one right case, one wrong case, one without data, and one fact."""

    def no_data(device):
        raise FileNotFoundError("root 'x' has no such graph")

    module = types.ModuleType("benchmarks.torch_toy")
    module.PEERS = ("numpy", "no-such-distribution")
    module.cases = lambda: [
        toy_case(),
        toy_case(name="wrong/64", tags=("wrong",), ours=lambda x: lambda: x.sum(0)),
        toy_case(name="far/64", tags=("far",), make=no_data),
        toy_case(name="gpu/64", tags=("quick",), devices=("cuda",)),
    ]
    module.facts = lambda: [Fact(name="bytes/edge", measure=lambda device, seed: 9.5, unit="B", target="<= 10")]
    monkeypatch.setitem(sys.modules, "benchmarks.torch_toy", module)


def test_a_quick_run_prints_a_table_and_saves_a_valid_file(toy, tmp_path, capsys):
    out = tmp_path / "r.json"
    assert main(["torch-toy", "--quick", "--device", "cpu", "--threads", "1", "--out", str(out)]) == 0
    result = load(out)
    assert [case.name for case in result.cases] == ["rowsum/64"]
    assert result.slug == "cpu-1c"
    assert result.cases[0].rounds == 10
    assert result.cases[0].roofline is not None
    assert result.ceilings["memory_copy_bytes_per_s"] > 1e8
    assert result.versions["peers"]["no-such-distribution"] == ""
    printed = capsys.readouterr().out
    assert "rowsum/64" in printed
    assert "absent: needs a licence" in printed


def test_a_wrong_ours_is_in_the_file_as_refused_and_the_status_is_1(toy, tmp_path):
    out = tmp_path / "r.json"
    filters = [part for word in ("wrong", "far", "bytes") for part in ("--filter", word)]
    assert main(["torch-toy", *filters, "--device", "cpu", "--out", str(out)]) == 1
    result = load(out)
    assert result.cases == []
    assert result.not_run["wrong/64"].startswith("refused: wrong/64: ValueError: differs from the reference")
    assert result.not_run["far/64"].startswith("no data: root 'x'")
    assert [(fact.name, fact.value, fact.met) for fact in result.facts] == [("bytes/edge", 9.5, True)]


def test_a_fact_whose_library_is_missing_is_recorded_and_the_run_goes_on(toy, tmp_path, capsys):
    def accuracy(device, seed):
        raise ImportError("training needs lightning: pip install lightning")

    module, out = sys.modules["benchmarks.torch_toy"], tmp_path / "r.json"
    known = module.facts()
    module.facts = lambda: [Fact(name="accuracy", measure=accuracy), *known]
    assert main(["torch-toy", "--filter", "accuracy", "--filter", "bytes", "--device", "cpu", "--out", str(out)]) == 0
    result = load(out)
    assert result.not_run == {"accuracy": "not installed: training needs lightning: pip install lightning"}
    assert [fact.name for fact in result.facts] == ["bytes/edge"]
    assert "accuracy: not installed: training needs lightning" in capsys.readouterr().out


def test_a_fact_that_fails_is_in_the_file_as_refused_and_the_run_goes_on(toy, tmp_path):
    def fails(device, seed):
        raise RuntimeError("no such kernel\nsecond line")

    module, out = sys.modules["benchmarks.torch_toy"], tmp_path / "r.json"
    known = module.facts()
    module.facts = lambda: [Fact(name="speed", measure=fails), *known]
    assert main(["torch-toy", "--filter", "speed", "--filter", "bytes", "--device", "cpu", "--out", str(out)]) == 1
    result = load(out)
    assert result.not_run == {"speed": "refused: speed: RuntimeError: no such kernel"}
    assert [fact.name for fact in result.facts] == ["bytes/edge"]


def test_merge_adds_to_a_file(toy, tmp_path):
    out = str(tmp_path / "r.json")
    common = ["torch-toy", "--device", "cpu", "--threads", "1", "--commit", "abc", "--out", out]
    main([*common, "--filter", "bytes"])
    main([*common, "--filter", "rowsum", "--merge"])
    result = load(tmp_path / "r.json")
    assert ([case.name for case in result.cases], [fact.name for fact in result.facts]) == (
        ["rowsum/64"],
        ["bytes/edge"],
    )


def test_list_names_cases_tags_and_peers(toy, capsys):
    assert main(["torch_toy", "--list", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "rowsum/64  [rowsum quick]  matmul, wrong, broken, absent"


def test_two_cases_of_one_name_are_an_error_before_anything_runs(toy, toy_case, capsys):
    sys.modules["benchmarks.torch_toy"].cases = lambda: [toy_case(), toy_case()]
    with pytest.raises(SystemExit):
        main(["torch-toy", "--device", "cpu"])
    assert "names appear twice on cpu: ['rowsum/64']" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["torch-none"], "no benchmarks for 'torch-none'"),
        (["torch-toy", "--rounds", "5"], "below 30"),
        (["torch-toy", "--filter", "nothing", "--device", "cpu"], "no case on cpu matches"),
    ],
)
def test_bad_arguments_say_what_is_wrong(toy, arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, slug",
    [("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"), ("NVIDIA GeForce RTX 4090", "rtx-4090")],
)
def test_device_slugs(name, slug):
    assert provenance.device_slug(name, device_type="cuda", threads=4) == slug


@pytest.mark.parametrize(
    "name", [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if not module.ispkg]
)
def test_docstring_examples(name):
    if name != "__main__" and not name.startswith("torch_"):
        results = doctest.testmod(importlib.import_module(f"benchmarks.{name}"), optionflags=doctest.ELLIPSIS)
        assert results.failed == 0
