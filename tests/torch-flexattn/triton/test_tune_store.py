"""The file of winners: whole or not there, shared by processes, replaced where it is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch_flexattn.tune import progress
from torch_flexattn.tune.progress import Progress
from torch_flexattn.tune.store import FORMAT, NAME, Store, forget, store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deeper" / NAME


def test_what_is_put_is_there_for_the_next_process(path):
    Store(path).put("a", {"ms": 1.0})
    assert Store(path).get("a") == {"ms": 1.0}
    assert Store(path).get("b") is None
    assert [p.name for p in path.parent.iterdir()] == [NAME]


def test_processes_keep_what_others_found(path):
    first, second = Store(path), Store(path)
    first.put("a", {"ms": 1.0})
    second.put("b", {"ms": 2.0})
    assert (Store(path).get("a"), Store(path).get("b")) == ({"ms": 1.0}, {"ms": 2.0})


@pytest.mark.parametrize("text", ["", '{"format": 1, "winn', "\x00\x01"])
def test_a_damaged_file_is_said_and_written_anew(path, text):
    path.parent.mkdir()
    path.write_text(text)
    with pytest.warns(UserWarning, match="cannot be read and will be written anew"):
        damaged = Store(path)
    with pytest.warns(UserWarning, match="cannot be read"):
        damaged.put("a", {"ms": 1.0})
    assert json.loads(path.read_text())["winners"] == {"a": {"ms": 1.0}}


@pytest.mark.parametrize(
    "found", [[], {"format": FORMAT + 1, "winners": {"a": {}}}, {"format": FORMAT, "winners": [1]}]
)
def test_a_file_of_another_format_is_none(path, found):
    path.parent.mkdir()
    path.write_text(json.dumps(found))
    assert Store(path).get("a") is None
    Store(path).put("b", {"ms": 1.0})
    assert json.loads(path.read_text()) == {"format": FORMAT, "winners": {"b": {"ms": 1.0}}}


def test_where_nothing_can_be_written_winners_last_as_long_as_the_process(tmp_path):
    (tmp_path / "file").write_text("")
    kept = Store(tmp_path / "file" / NAME)
    with pytest.warns(UserWarning, match=r"is lost when this process ends: .*TORCH_FLEXATTN_CACHE"):
        kept.put("a", {"ms": 1.0})
    assert kept.get("a") == {"ms": 1.0}


def test_it_lies_in_the_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FLEXATTN_CACHE", str(tmp_path))
    assert store().path == tmp_path / NAME
    assert store() is store()
    forget()


def test_progress_is_told_only_of_what_takes_long(capsys, monkeypatch):
    short = Progress("timing", 2)
    short.step("one")
    short.close("one")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    long = Progress("timing", 2)
    long.step("one")
    long.step("two")
    long.close("two")
    assert capsys.readouterr().err.splitlines() == [
        "torch-flexattn: timing, 1 of 2: one", "torch-flexattn: timing, 2 of 2: two", "torch-flexattn: timing: two",
    ]  # fmt: skip
