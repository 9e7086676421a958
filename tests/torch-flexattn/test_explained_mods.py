"""What is said about a mask or a score modification, and that it is true."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import torch
from torch_flexattn import (
    InputError,
    KindError,
    UnsupportedModError,
    create_block_mask,
    examination,
    mask_mod,
    masks,
    score_mod,
    scores,
)
from torch_flexattn.explanation import decided, explain
from torch_flexattn.program import parse


def test_a_function_is_explained_with_its_lines():
    documents, window = torch.arange(512) // 100, 30

    def near(b, h, q_idx, kv_idx):
        close = (q_idx - kv_idx).abs() < window  # the line of the distance
        return close & (documents[q_idx] == documents[kv_idx])  # the line of the documents

    found = explain(near)
    assert found.kind == "mask"
    assert found.depends_on == ("kv", "q")
    assert found.scalars == ("s0: int32 = 30",)
    assert found.captures == ("c0: int64 [512] on cpu",)
    lines = dict(found.lines)
    assert [words.rpartition("# ")[2] for words in lines.values()] == [
        "the line of the distance",
        "the line of the documents",
    ]
    file = Path(__file__)
    for place, words in lines.items():
        name, _, number = place.partition(":")
        assert name == file.name
        assert file.read_text(encoding="utf-8").splitlines()[int(number) - 1].strip() == words
    gather = next(line for line in found.program if " gather " in line)
    assert gather.endswith(f"# {list(lines)[1]}")


def test_the_program_is_whole_and_marks_its_result():
    mask = masks.prefix_lm(7) & masks.causal()
    lines = explain(mask).program
    bare = [re.sub(r"(  # .*)?(  → result)?$", "", line) for line in lines]
    text = "\n".join(["captures", "scalars int32", *bare, f"return %{mask.program.output}"])
    assert parse(text) == mask.program
    assert [line.endswith("→ result") for line in lines] == [n == mask.program.output for n in range(len(lines))]
    assert explain(mask).key == mask.program.key


def test_the_pytorch_function_runs_and_agrees():
    mask = masks.causal() & masks.sliding_window(3)
    scope = {"torch": torch}
    exec(explain(mask).pytorch, scope)
    i = torch.arange(6)
    ((seen,), bad) = scope["evaluate"]({"q": i[:, None], "kv": i}, [], mask.scalars)
    assert bad is None
    assert torch.equal(seen, mask(torch.tensor(0), torch.tensor(0), i[:, None], i))


def test_triton_statements_stand_where_they_belong():
    table = torch.zeros(8, 64)
    mod = score_mod(lambda score, b, h, q, kv: score + table[h, q] * (kv % 3) + table[h, 0])
    places = {}
    for line in explain(mod).triton.splitlines():
        if line.startswith("# "):
            place = line
        else:
            places.setdefault(place, []).append(line)
    once, row, key, inner = (
        places[f"# {w}"]
        for w in (
            "once a batch entry and head",
            "once a block of queries",
            "at every block of keys, once a key",
            "at every block of keys, once a pair",
        )
    )
    assert sum("tl.load(c0" in line for line in once) == 1
    assert sum("tl.load(c0" in line for line in row) == 1
    assert any("(kv_idx % 3)" in line for line in key)
    assert not any("tl.load" in line for line in inner)
    assert re.fullmatch(r"score = x\d+", inner[-1])


def test_masks_say_what_they_depend_on():
    assert "one block mask serves all" in str(explain(masks.causal()))
    assert "depends on b, kv\n" in str(explain(masks.padding([3, 4])))
    assert "depends on nothing" in str(explain(masks.always()))


def test_captures_that_need_a_gradient_are_marked():
    table = torch.zeros(4, 9, dtype=torch.float64, requires_grad=True)
    assert explain(scores.relative_bias(table)).captures == ("c0: float64 [4, 9] on cpu, needs a gradient",)


@pytest.mark.parametrize(
    "name, decided_full, looked_at",
    [("causal", 120, 16), ("window", 15, 30), ("prefix", 123, 16)],
)
def test_blocks_that_ranges_decide(name, decided_full, looked_at):
    mask = {
        "causal": masks.causal(),
        "window": masks.causal() & masks.sliding_window(256),
        "prefix": masks.prefix_lm(300),
    }[name]
    found = explain(mask, 2048).decided
    assert (found.full, found.looked_at, found.hidden) == (decided_full, looked_at, 256 - decided_full - looked_at)
    assert found.kinds == (looked_at, 0, 0)


def test_blocks_that_only_looking_decides():
    zero = mask_mod(lambda b, h, q, kv: q * kv + q - q * (kv + 1) == 0)  # always true, which ranges do not show
    found = explain(zero, 256).decided
    assert found.full + found.kinds[1] == 4
    assert found.looked_at > 0
    assert found.kinds[0] == found.kinds[2] == 0
    assert explain(mask_mod(lambda b, h, q, kv: (q + kv) // 3 >= 0), 256).decided.looked_at == 0  # ranges show it


@pytest.mark.parametrize("name", ["causal", "natten", "document", "streaming", "head"])
def test_decided_blocks_add_up_to_the_block_mask(name):
    reach = torch.tensor([70, 5])
    mask = {
        "causal": lambda: masks.causal("bottom_right"),
        "natten": lambda: masks.natten2d((20, 30), (5, 7)),
        "document": lambda: masks.document([0, 100, 333, 600], causal=True),
        "streaming": lambda: masks.streaming(4, 100),
        "head": lambda: mask_mod(lambda b, h, q, kv: (q - kv).abs() < reach[h]),
    }[name]()
    found = decided(mask, 600, 600, (32, 64))
    plain = masks.with_lengths(mask, 600, 600)
    partial, full = create_block_mask(plain, 1, 1, 600, 600, BLOCK_SIZE=(32, 64)).nnz_blocks()
    assert found.blocks == 19 * 10 == found.full + found.hidden + found.looked_at
    assert (found.kinds[0], found.full + found.kinds[1]) == (partial, full)
    assert sum(found.kinds) == found.looked_at


def test_long_masks_are_decided_quickly():
    start = time.perf_counter()
    found = explain(masks.document(torch.arange(0, 131_001, 200), causal=True), 131_000).decided
    assert time.perf_counter() - start < 5
    assert found.blocks == 1024**2
    assert found.looked_at < 5000


def test_everything_is_printed():
    text = str(explain(masks.causal() & masks.sliding_window(256), 2048))
    titles = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert titles[0].startswith("mask: (b, h, q_idx, kv_idx) -> bool, program ")
    assert [t for t in titles if t in ("program", "PyTorch", "Triton statements", "blocks")] == [
        "program", "PyTorch", "Triton statements", "blocks",
    ]  # fmt: skip
    assert "looked at, position by position: 30 (30 partial, 0 full, 0 hidden)" in text


@pytest.mark.parametrize(
    "mod, lengths, error, said",
    [
        (3, {}, KindError, "int"),
        (masks.causal(), {"kv_len": 9}, InputError, "kv_len=9"),
        (scores.softcap(3), {"q_len": 9}, InputError, "got 9"),
        (masks.causal(), {"q_len": 0}, InputError, "got 0 and 0"),
        (masks.causal(), {"q_len": 1 << 20}, InputError, "blocks, got 1048576"),
        (lambda b, h, q, kv: bool(q > kv), {}, UnsupportedModError, "torch.where"),
    ],
)
def test_bad_input_is_named(mod, lengths, error, said):
    with pytest.raises(error, match=said):
        explain(mod, **lengths)


def test_the_doctor_tries_the_kernels_of_the_cpu():
    found = {f.name: f for f in examination.doctor()}
    cpu = found["CPU kernels, forward and backward"]
    assert cpu.status == "works", cpu.found
    assert found["PyTorch"].found.startswith(torch.__version__)


def test_the_doctor_does_not_claim_what_it_has_not_tried(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = {f.name: f for f in examination.doctor()}
    assert found["GPU"].status == found["GPU kernels, forward and backward"].status == "absent"


def test_the_doctor_says_that_there_are_no_kernels(monkeypatch):
    def refuse(*args, **options):
        raise NotImplementedError("there are no kernels for this yet")

    monkeypatch.setattr(examination, "flex_attention", refuse)
    found = {f.name: f for f in examination.doctor()}["CPU kernels, forward and backward"]
    assert (found.status, found.found) == ("absent", "there are no kernels for this yet")


def test_the_doctor_lets_no_other_kernels_stand_in(monkeypatch):
    right, asked = examination.flex_attention, []

    def recorded(*args, backend, **options):
        asked.append(backend)
        return right(*args, backend=backend, **options)

    monkeypatch.setattr(examination, "flex_attention", recorded)
    examination.doctor()
    assert "cpu" in asked
    assert "auto" not in asked


def test_the_doctor_notices_wrong_results(monkeypatch):
    right = examination.flex_attention

    def wrong(*args, backend, **options):
        return right(*args, backend=backend, **options) + (backend != "reference") * 0.01

    monkeypatch.setattr(examination, "flex_attention", wrong)
    found = {f.name: f for f in examination.doctor()}["CPU kernels, forward and backward"]
    assert found.status == "fails"
    assert "more than 1e-05" in found.found


def test_the_doctor_notices_errors(monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(examination, "flex_attention", broken)
    found = {f.name: f for f in examination.doctor()}["CPU kernels, forward and backward"]
    assert (found.status, found.found) == ("fails", "RuntimeError: no compiler")


def test_the_doctor_tries_to_write_to_the_cache(monkeypatch, tmp_path):
    def look():
        return {f.name: f for f in examination.doctor()}["cache folder"]

    monkeypatch.setenv("TORCH_FLEXATTN_CACHE", str(tmp_path / "new"))
    assert look().status == "works"
    assert "not made yet" in look().found
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCH_FLEXATTN_CACHE", str(tmp_path / "file"))
    assert look().status == "fails"
    assert "TORCH_FLEXATTN_CACHE" in look().found
