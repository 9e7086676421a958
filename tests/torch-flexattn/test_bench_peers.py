"""Who takes part in ``bench``: names, packages of others by their calling conventions, and why somebody is absent."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from torch_flexattn.bench import contenders, flash_attention, lineup, memory, race, suites
from torch_flexattn.bench.pages import pages_of
from torch_flexattn.bench.peer import Peer
from torch_flexattn.bench.task import make_task
from torch_flexattn.cli import main
from torch_flexattn.errors import InputError

from . import bench_stand_ins as stand_ins

CPU = torch.device("cpu")
GPU = torch.device("cuda")
NAMES = ("flash_attn", "flash_attn_interface", "fa3_fwd_interface", "flashinfer")


@pytest.fixture
def installed(monkeypatch):
    """Puts stand-ins in the places of packages; all others of them are not there."""

    def put(*names):
        for name in NAMES:
            module = stand_ins.flashinfer() if name == "flashinfer" else stand_ins.flash_attention(name)
            monkeypatch.setitem(sys.modules, name, module if name in names else None)

    return put


def case(mod, queries=300, *, page=0, backward=False):
    return suites.Attend(mod, 2, 4, 2, queries, 300, 16, backward, page)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("mod", flash_attention.PLAIN)
@pytest.mark.parametrize(
    "version, module", [("fa2", "flash_attn"), ("fa3", "flash_attn_interface"), ("fa3", "fa3_fwd_interface")]
)
def test_flash_attention_gets_what_means_the_same(installed, version, module, mod, backward):
    installed(module)
    result = race.race(case(mod, backward=backward), (version,), CPU, torch.float32, 1)
    assert result.errors == {}
    assert result.differences[version] < 1e-4


@pytest.mark.parametrize("peer", ["fa2", "fa3", "flashinfer"])
@pytest.mark.parametrize("mod", ["noop", "sliding_window", "softcap"])
def test_decoding_by_others_is_the_same(installed, peer, mod):
    installed(*NAMES)
    result = race.race(case(mod, 1), (peer,), CPU, torch.float32, 1)
    assert result.errors == {}


@pytest.mark.parametrize("peer", ["fa3", "flashinfer", "contiguous"])
@pytest.mark.parametrize("page", [16, 64])
def test_decoding_from_pages_by_others_is_the_same(installed, peer, page):
    installed(*NAMES)
    result = race.race(case("sliding_window", 1, page=page), (peer,), CPU, torch.float32, 1)
    assert result.errors == {}


@pytest.mark.parametrize(
    "peer, wanted, said",
    [
        ("fa2", case("alibi"), "it has no place for alibi"),
        ("fa3", case("document", 1), "it has no place for document"),
        ("fa2", case("noop", 1, page=16), "its pages are multiples of 256 keys, not 16"),
        ("flashinfer", case("alibi", 1), "it has no place for alibi"),
        ("flashinfer", case("noop"), "here for decoding alone"),
    ],
)
def test_what_others_have_no_place_for_is_said(installed, peer, wanted, said):
    installed(*NAMES)
    assert race.race(wanted, (peer,), CPU, torch.float32, 1).errors == {peer: said}


def test_arguments_that_mean_something_else_are_noticed(installed, monkeypatch):
    installed("flash_attn")
    monkeypatch.setitem(flash_attention.PLAIN, "sliding_window", {"causal": True, "window_size": (256, 0)})
    result = race.race(case("sliding_window"), ("fa2",), CPU, torch.float32, 1)
    assert result.errors["fa2"].startswith("its results differ from ours by ")


def test_version_3_is_found_under_either_name(installed):
    for name in ("flash_attn_interface", "fa3_fwd_interface"):
        installed(name)
        assert flash_attention.module_of("fa3").__name__ == name


def test_packages_that_are_absent_say_why(installed):
    installed()
    found = lineup.absences("decode", ["math", "fa2", "fa3", "flashinfer"], GPU)
    assert list(found) == ["fa2", "fa3", "flashinfer"]
    assert all(why.startswith("cannot be imported (") for why in found.values())
    assert "flash_attn_interface: " in found["fa3"]
    assert "fa3_fwd_interface: " in found["fa3"]
    installed(*NAMES)
    assert lineup.absences("decode", ["math", "fa2", "fa3", "flashinfer"], GPU) == {}
    assert set(lineup.absences("decode", ["math", "cudnn", "fa3", "flashinfer"], CPU).values()) == {
        "it has kernels for GPUs alone, and this is cpu"
    }


def test_who_fails_at_import_is_absent_too(installed, monkeypatch):
    def broken(name):
        raise OSError(f"{name}.so: undefined symbol: _ZN3c10\nand more")

    monkeypatch.setattr(flash_attention.importlib, "import_module", broken)
    found = lineup.absences("decode", ["fa2", "flashinfer"], GPU)
    assert found["fa2"] == "cannot be imported (flash_attn: flash_attn.so: undefined symbol: _ZN3c10)"
    assert found["flashinfer"] == "cannot be imported (flashinfer.so: undefined symbol: _ZN3c10)"


def test_nobody_is_left_out_without_a_word(installed, capsys, tmp_path):
    installed()
    path = tmp_path / "found.json"
    line = ["bench", "--suite", "paged", "--quick", "--device", "cpu", "--peers", "all", "--json", str(path)]
    assert main(line) == 0
    printed = capsys.readouterr().out
    found = json.loads(path.read_text())
    assert set(found["not_measured"]) == {"fa2", "fa3", "flashinfer"}
    assert all(f"not measured: {name}: {why}" in printed for name, why in found["not_measured"].items())
    assert "fa3 ms" not in printed.splitlines()[0]


def test_names_of_peers():
    every = lineup.chosen("all", list(suites.SUITES), CPU)
    assert every == lineup.ALL
    usual = lineup.chosen("auto", ["paper", "gym", "decode"], GPU)
    spoken = {"torch_flex", "cudnn", "flash", "efficient", "math", "fa3"}
    assert spoken < set(usual["paper"])
    assert set(usual["gym"]) == spoken
    assert "flashinfer" in usual["decode"]
    assert lineup.chosen("auto", ["biasgrad"], CPU) == {"biasgrad": ("torch_flex", "flash", "math", "fixed_bias")}
    assert lineup.chosen("none", ["gym", "mask"], CPU) == {"gym": (), "mask": ()}
    assert lineup.chosen("torch_flex,cudnn", ["gym", "mask"], GPU) == {
        "gym": ("torch_flex", "cudnn"),
        "mask": ("torch_flex",),
    }
    assert set(lineup.KNOWN) == {*contenders.PEERS, "torch_flex_eager"}


def test_the_manual_has_every_peer():
    manual = (Path(__file__).parents[2] / "docs/packages/torch-flexattn.md").read_text(encoding="utf-8")
    table = manual.split("| peer | what |", 1)[1].split("\n\n", 1)[0]
    assert set(lineup.KNOWN) <= set(re.findall(r"`(\w+)`", table))


@pytest.mark.parametrize(
    "text, suite, said",
    [
        ("fa4", "gym", "'fa4' is none of auto, all, none, torch_flex,"),
        ("", "gym", "'' is none of"),
        ("all,math", "gym", "'all' is none of auto, all, none, torch_flex,"),
        ("contiguous", "gym", "'contiguous' takes no part in gym, which has torch_flex,"),
        ("math,cudnn,math", "gym", "'math' is there more than once: 'math,cudnn,math'"),
    ],
)
def test_names_that_do_not_fit_are_named(text, suite, said):
    with pytest.raises(InputError) as caught:
        lineup.chosen(text, [suite], CPU)
    assert said in str(caught.value)


@pytest.mark.parametrize("mod", ["relative_bias", "t5_bias", "head_scale"])
def test_a_fixed_bias_gives_the_gradients_of_features_alone(mod):
    result = race.race(suites.Attend(mod, 1, 2, 2, 32, 32, 16, True), ("fixed_bias",), CPU, torch.float32, 1)
    assert result.errors == {}
    task = contenders.without_learnt(make_task(suites.Attend(mod, 1, 2, 2, 32, 32, 16, True), CPU, torch.float32))
    assert len(contenders.backward(contenders.ours, task)()) == 3
    assert not any(capture.requires_grad for capture in task.variant.score.captures)


def test_a_peer_may_not_give_fewer_results_than_ours_unless_it_says_so(monkeypatch):
    less = Peer(contenders.ours, laid=contenders.without_learnt)
    monkeypatch.setitem(contenders.PEERS, "less", less)
    result = race.race(suites.Attend("t5_bias", 1, 2, 2, 32, 32, 16, True), ("less",), CPU, torch.float32, 1)
    assert result.errors["less"].startswith("ValueError: ")


def test_pages_of_our_cache_lie_between_each_others(monkeypatch):
    tables = []

    class Seen(contenders.PagedKVCache):
        def attend(self, q, seqs, *mods):
            tables.append(self.block_table(seqs))
            return super().attend(q, seqs, *mods)

    monkeypatch.setattr(contenders, "PagedKVCache", Seen)
    contenders.ours(make_task(suites.Attend("noop", 2, 4, 2, 1, 48, 16, page=16), CPU, torch.float32))()
    first, second = tables[0].tolist()
    assert abs(first[0] - first[1]) > 1
    assert abs(second[0] - second[1]) > 1


@pytest.mark.parametrize("mixed", [False, True])
def test_pages_hold_the_keys_in_order(mixed):
    task = make_task(suites.Attend("noop", 3, 4, 2, 1, 70, 8), CPU, torch.float32)
    cut = pages_of(task, 16, mixed=mixed)
    assert cut.k.shape == (15, 16, 2, 8)
    assert cut.last == 6
    assert sorted(cut.table.flatten().tolist()) == list(range(15))
    assert cut.table[1].tolist() == ([1, 4, 7, 10, 13] if mixed else [5, 6, 7, 8, 9])
    for pages, features in ((cut.k, task.k), (cut.v, task.v)):
        joined = pages[cut.table.long()].flatten(1, 2).transpose(1, 2)
        assert torch.equal(joined[:, :, :70], features)
        assert not joined[:, :, 70:].any()


def test_dense_peers_that_would_take_the_machines_memory_are_refused(monkeypatch):
    monkeypatch.setattr(memory, "machine_bytes", lambda: 1 << 16)
    result = race.race(case("sliding_window"), ("math", "flash", "torch_flex"), CPU, torch.float32, 1)
    assert result.errors["math"].startswith("MemoryError: its scores would take 0.0 GiB of the machine's ")
    assert result.errors["flash"].startswith("MemoryError: a mask or bias of all positions would take ")
    assert result.errors["torch_flex"].startswith("MemoryError: a mask of all positions would take ")
    built = race.race(suites.Build("causal", 512), ("torch_flex_eager",), CPU, torch.float32, 1)
    assert built.errors["torch_flex_eager"].startswith("MemoryError: a mask of all positions would take ")
    assert memory.check_room("anything", 1 << 60, GPU) is None
