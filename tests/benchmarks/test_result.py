"""The result file: round trip, refusals, merging, paths into it."""

import dataclasses
import json

import pytest

from benchmarks.lookup import lookup
from benchmarks.result import CaseResult, FactResult, Result, Roofline, Times, load, merge, save


def case(name="spmm/a/d64", **changes):
    fields = {
        "name": name,
        "tags": ["spmm"],
        "ours_ms": 2.0,
        "peers_ms": {"mkl": 6.8, "scipy": 5.0},
        "speedup": {"mkl": 3.4, "scipy": 2.5},
        "max_rel_err": 1e-6,
        "rounds": 30,
        "roofline": Roofline(bytes=1e9, flops=2e9, bound="hbm", fraction=0.61),
        "cold": Times(ours_ms=3.0, peers_ms={"mkl": 6.0}, speedup={"mkl": 2.0}),
        "peak_bytes": {"ours": 1024, "mkl": 4096},
    }
    return CaseResult(**(fields | changes))


def result(**changes):
    fields = {
        "package": "torch-tcgnn",
        "device": "Some GPU",
        "slug": "some-gpu",
        "date": "2026-12-01",
        "commit": "abc",
        "threads": 2,
        "versions": {"torch": "2.13.0", "peers": {"scipy": "1.17.1"}},
        "cases": [case(), case("spmm/b/d64", peers_ms={"mkl": 3.0}, speedup={"mkl": 1.5}, cold=None)],
        "facts": [FactResult(name="peak/bytes", value=123, unit="B", target="<= 150", met=True, seeds=[0])],
    }
    return Result(**(fields | changes))


def test_what_is_saved_is_what_is_loaded(tmp_path):
    save(result(), tmp_path / "a" / "r.json")
    assert load(tmp_path / "a" / "r.json") == result()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["r.json"]


def _edit(tmp_path, change):
    path = tmp_path / "r.json"
    save(result(), path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda d: d["cases"][0]["speedup"].update(mkl=4.0), r"speedup\['mkl'\] is 4.0"),
        (lambda d: d["cases"][0].update(ours_ms=1.0), "but 6.8 / 1.0"),
        (lambda d: d["cases"][0].update(ours_ms=-1.0), "times must be positive"),
        (lambda d: d["cases"][0].update(ours_ms="2"), "ours_ms: expected"),
        (lambda d: d["cases"][0].pop("rounds"), r"missing keys \['rounds'\]"),
        (lambda d: d.update(extra=1), r"unknown keys \['extra'\]"),
        (lambda d: d["cases"][0]["speedup"].pop("mkl"), "speedup names"),
        (lambda d: d["cases"].append(d["cases"][0]), "appear twice"),
        (lambda d: d["cases"][0].update(peers_ms={}, speedup={}), "no note that says why"),
        (lambda d: d["cases"][0]["cold"]["speedup"].update(mkl=9.0), r"\(cold\)"),
    ],
)
def test_a_file_that_contradicts_itself_or_the_schema_is_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        load(_edit(tmp_path, change))


def test_not_json_is_refused(tmp_path):
    (tmp_path / "r.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        load(tmp_path / "r.json")


def test_merge_keeps_old_cases_and_replaces_measured_ones():
    new = result(cases=[case(ours_ms=1.0, speedup={"mkl": 6.8, "scipy": 5.0})], facts=[])
    merged = merge(result(), new)
    assert [(c.name, c.ours_ms) for c in merged.cases] == [("spmm/b/d64", 2.0), ("spmm/a/d64", 1.0)]
    assert merged.facts == result().facts


def test_merge_drops_a_case_that_could_not_run_this_time():
    merged = merge(result(), result(cases=[], not_run={"spmm/a/d64": "refused: wrong"}))
    assert [c.name for c in merged.cases] == ["spmm/b/d64"]


def test_merge_refuses_another_commit_or_machine():
    with pytest.raises(ValueError, match="commit was 'abc', is 'def'"):
        merge(result(), result(commit="def"))


@pytest.mark.parametrize(
    "path, value, unit",
    [
        ("cases/spmm/a/d64/speedup/mkl", 3.4, "×"),
        ("cases/spmm/a/d64/speedup/best", 2.5, "×"),
        ("cases/spmm/a/d64/peers_ms/mkl", 6.8, "ms"),
        ("cases/spmm/a/d64/cold/speedup/mkl", 2.0, "×"),
        ("cases/spmm/a/d64/roofline/fraction", 0.61, ""),
        ("cases/spmm/a/d64/peak_bytes/ours", 1024, "B"),
        ("tags/spmm/speedup/mkl/geomean", (3.4 * 1.5) ** 0.5, "×"),
        ("tags/spmm/speedup/best/min", 1.5, "×"),
        ("facts/peak/bytes/value", 123, "B"),
    ],
)
def test_lookup_finds_values_and_units(path, value, unit):
    found, found_unit = lookup(result(), path)
    assert found == pytest.approx(value)
    assert found_unit == unit


@pytest.mark.parametrize(
    "path",
    [
        "cases/none/speedup/mkl",
        "cases/spmm/a/d64/speedup/none",
        "cases/spmm/a/d64/name",
        "facts/none/value",
        "tags/x/speedup/mkl/min",
        "other/a",
    ],
)
def test_lookup_says_what_is_not_there(path):
    with pytest.raises(KeyError, match=path.split("/")[0]):
        lookup(result(), path)


def test_lookup_prefers_the_longest_name():
    longer = case("spmm/a/d64/fp16", ours_ms=1.0, speedup={"mkl": 6.8, "scipy": 5.0})
    both = dataclasses.replace(result(), cases=[case(), longer])
    assert lookup(both, "cases/spmm/a/d64/fp16/ours_ms")[0] == 1.0
