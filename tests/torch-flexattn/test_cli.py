"""The command line: its expressions, which are never evaluated as Python, and its commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch_flexattn
from torch_flexattn import InputError, MaskMod, ScoreMod, create_mask, masks, scores, viz
from torch_flexattn.cli import main
from torch_flexattn.cli.expression import MASKS, SCORES, parse
from torch_flexattn.kernels.launch import files as sources


@pytest.mark.parametrize(
    "text, mask",
    [
        ("causal", lambda: masks.causal()),
        ("causal()", lambda: masks.causal()),
        (" causal & sliding_window(9) ", lambda: masks.causal() & masks.sliding_window(9)),
        ("causal | sliding_window(left=2, right=5)", lambda: masks.causal() | masks.sliding_window(left=2, right=5)),
        ("~causal", lambda: ~masks.causal()),
        ("causal & ~(chunked(4) | prefix_lm(3))", lambda: masks.causal() & ~(masks.chunked(4) | masks.prefix_lm(3))),
        ("always & ~causal | never", lambda: (masks.always() & ~masks.causal()) | masks.never()),
        ("document([0, 5, 40], causal=True)", lambda: masks.document([0, 5, 40], causal=True)),
        ("natten2d((5, 8), (3, 5))", lambda: masks.natten2d((5, 8), (3, 5))),
        ("from_dense([[True, False], [False, True]])", lambda: masks.from_dense(torch.eye(2, dtype=torch.bool))),
        ("causal('bottom_right', q_len=4, kv_len=6)", lambda: masks.causal("bottom_right", q_len=4, kv_len=6)),
    ],
)
def test_masks_are_what_the_factories_make(text, mask):
    made = parse(text)
    size = 2 if "dense" in text else 40
    assert isinstance(made, MaskMod)
    assert torch.equal(create_mask(made, 1, 1, size, size), create_mask(mask(), 1, 1, size, size))


@pytest.mark.parametrize(
    "text, score",
    [
        ("softcap(20)", lambda: scores.softcap(20)),
        ("alibi(4, symmetric=True)", lambda: scores.alibi(4, symmetric=True)),
        ("relative_bias([[1.5, 0.0, -2.0]])", lambda: scores.relative_bias(torch.tensor([[1.5, 0.0, -2.0]]))),
        ("alibi(4).then(softcap(0.5))", lambda: scores.alibi(4).then(scores.softcap(0.5))),
    ],
)
def test_scores_are_what_the_factories_make(text, score):
    made, i = parse(text), torch.arange(2)
    assert isinstance(made, ScoreMod)
    arguments = (torch.tensor(1.0), torch.tensor(0), torch.tensor(0), i[:, None], i)
    assert torch.equal(made(*arguments), score()(*arguments))


@pytest.mark.parametrize(
    "text, said",
    [
        (
            "casual & causal",
            r"unknown name 'casual'; masks are always, .*causal, .*; score modifications are add_mask, ",
        ),
        ("with_lengths(causal, 3, 3)", "arguments must be literals, got 'causal'"),
        ("alibi_slopes(8)", "unknown name 'alibi_slopes'"),
        ("__import__('os')", "unknown name '__import__'"),
        ("causal.__class__", "'causal.__class__' is not allowed"),
        ("causal().program", "is not allowed"),
        ("().__class__.__bases__[0]", "is not allowed"),
        ("sliding_window(256)(1)", "is not allowed"),
        ("sliding_window(int('3'))", r"literals, got \"int\('3'\)\""),
        ("sliding_window(2 ** 9)", "literals, got '2 \\*\\* 9'"),
        ("sliding_window(w)", "literals, got 'w'"),
        ("sliding_window(*[1])", "literals"),
        ("sliding_window(**{'w': 3})", "is not allowed"),
        ("causal and causal", "'causal and causal' is not allowed"),
        ("not causal", "is not allowed"),
        ("causal + causal", "is not allowed"),
        ("causal ^ causal", "is not allowed"),
        ("-causal", "is not allowed"),
        ("[causal]", "is not allowed"),
        ("lambda: causal", "is not allowed"),
        ("causal if True else causal", "is not allowed"),
        ("(x := causal)", "is not allowed"),
        ("f'{causal}'", "is not allowed"),
        ("3", "'3' is not allowed"),
        ("", "not an expression"),
        ("causal causal", "not an expression"),
        ("causal; causal", "not an expression"),
        ("import os", "not an expression"),
        ("causal\0", "not an expression"),
        ("softcap(2) & causal", r"between masks, got a score modification: 'softcap\(2\)'"),
        ("~softcap(2)", "between masks"),
        ("causal.then(softcap(2))", "between score modifications"),
        ("softcap(2).then(causal)", "between score modifications"),
        ("softcap(2).before(softcap(3))", "is not allowed"),
        ("sliding_window(0)", "sliding_window: w must be an integer of at least 1.*got 0"),
        (
            "sliding_window(window=3)",
            "sliding_window: got an unexpected keyword argument 'window'; it takes sliding_window",
        ),
        ("chunked", "chunked: missing a required argument: 'c'"),
        ("document([[1], [2, 3]])", "is no tensor"),
        ("softcap('a')", "softcap: c must be a number, got 'a'"),
        ("~" * 60 + "causal", "at most 50 operations"),
        ("(" * 300 + "causal" + ")" * 300, "not an expression"),
        ("causal " * 2000, "at most 10000 characters"),
    ],
)
def test_anything_else_is_refused(text, said):
    with pytest.raises(InputError, match=said):
        parse(text)


def test_every_factory_has_a_name_and_none_has_two_meanings():
    assert set(MASKS) == set(masks.__all__) - {"tile_order", "with_lengths"}
    assert set(SCORES) == set(scores.__all__) - {"alibi_slopes", "t5_buckets"}
    assert not set(MASKS) & set(SCORES)


def test_viz_prints_the_picture(capsys):
    assert main(["viz", "causal & sliding_window(256)", "--seq", "2048"]) == 0
    assert capsys.readouterr().out == viz.text(masks.causal() & masks.sliding_window(256), 2048) + "\n"


def test_viz_takes_lengths_blocks_batch_head_and_level(capsys):
    sizes = ["--seq", "90", "--kv-seq", "100", "--block", "16", "32"]
    assert main(["viz", "padding([70, 20])", *sizes, "--batch", "1", "--cells", "8"]) == 0
    expected = viz.text(masks.padding([70, 20]), 90, 100, block=(16, 32), batch=1, cells=8)
    assert capsys.readouterr().out == expected + "\n"
    assert main(["viz", "alibi(8)", "--seq", "9", "--head", "3", "--score", "2.5", "--mask", "causal"]) == 0
    expected = viz.text(scores.alibi(8), 9, head=3, value=2.5, mask=masks.causal())
    assert capsys.readouterr().out == expected + "\n"
    assert main(["viz", "causal", "--seq", "20", "--level", "block", "--block", "16"]) == 0
    assert capsys.readouterr().out == viz.text(masks.causal(), 20, level="block", block=16) + "\n"


@pytest.mark.parametrize("kind", ["png", "svg", "txt"])
def test_viz_writes_files(kind, tmp_path, capsys):
    path = tmp_path / f"mask.{kind}"
    assert main(["viz", "causal", "--seq", "300", "-o", str(path)]) == 0
    viz.save(tmp_path / f"other.{kind}", masks.causal(), 300)
    assert path.read_bytes() == (tmp_path / f"other.{kind}").read_bytes()
    assert capsys.readouterr().out == f"{path}: {path.stat().st_size:,} bytes\n"


@pytest.mark.parametrize(
    "line, said",
    [
        (["viz", "nothing", "--seq", "3"], "torch-flexattn viz: unknown name 'nothing'"),
        (["viz", "causal"], "--seq"),
        (["viz", "causal", "--seq", "0"], "got '0'"),
        (["viz", "causal", "--seq", "-4"], "--seq"),
        (["viz", "causal", "--seq", "1e3"], "got '1e3'"),
        (["viz", "causal", "--seq", "99999999999999999999"], "2**31 - 1"),
        (["viz", "causal", "--seq", "64", "--block", "20"], "multiples of 16, got 20"),
        (
            ["viz", "causal", "--seq", "64", "--block", "16", "16", "16"],
            "--block takes one number or two, got 16 16 16",
        ),
        (["viz", "causal", "--seq", "64", "-o", "mask.jpg"], "--output must end in .png, .svg, .txt, got 'mask.jpg'"),
        (["viz", "causal", "--seq", "64", "-o", "missing/mask.png"], "missing"),
        (["viz", "causal", "--seq", "64", "--cells", "3", "-o", "mask.png"], "--cells 3"),
        (["viz", "causal", "--seq", "64", "--mask", "causal"], "mask"),
        (["viz", "alibi(8)", "--seq", "64", "--mask", "alibi(8)"], "--mask must be a mask"),
        (["viz", "alibi(8)", "--seq", "4", "--head", "9"], "out of range at b=0, h=9"),
        (["explain", "causal", "--kv-seq", "3"], "kv_len=3"),
        (["paint"], "invalid choice: 'paint'"),
        ([], "COMMAND"),
    ],
)
def test_faulty_input_ends_with_status_2_and_a_reason(line, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(line) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""
    assert "Traceback" not in printed.err
    assert not list(tmp_path.iterdir())


def test_explain_prints_program_code_and_blocks(capsys):
    assert main(["explain", "causal & sliding_window(256)", "--seq", "2048"]) == 0
    printed = capsys.readouterr().out
    assert "def evaluate(inputs, captures, scalars, read=None):" in printed
    assert "visible = y7" in printed
    assert "s0: int32 = 256" in printed
    assert "looked at, position by position: 30" in printed
    assert "your lines" not in printed  # the user wrote none
    assert ".py:" not in printed
    assert main(["explain", "softcap(20)"]) == 0
    assert "tanh(" in capsys.readouterr().out


def test_doctor_prints_what_it_found(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("works   CPU kernels, forward and backward: ") for line in lines)
    assert {line.split()[0] for line in lines} <= {"works", "absent"}


def test_doctor_ends_with_status_1_where_something_fails(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCH_FLEXATTN_CACHE", str(tmp_path / "file"))
    assert main(["doctor"]) == 1
    assert "fails   cache folder: " in capsys.readouterr().out


def test_cache_shows_and_clears_only_what_is_ours(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_FLEXATTN_CACHE", str(tmp_path / "cache"))
    folder = sources.cache_dir()
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"{folder}: 0 kernels, 0 bytes (the folder is not there)\n"
    sources.load.cache_clear()
    sources.load("one = 1\n")
    sources.load("two = 22\n")
    half_written = folder / f"kernel_{'0' * 24}.{'1' * 16}"
    half_written.write_text("abc")
    bytecode = folder / "__pycache__" / f"kernel_{'2' * 24}.cpython-312.pyc"
    bytecode.parent.mkdir(exist_ok=True)
    bytecode.write_text("defg")
    tuned = folder / "tuned.json"
    tuned.write_text("{}")
    others = [folder / "notes.txt", folder / "kernel_mine.py", folder / "deeper"]
    others[0].write_text("mine")
    others[1].write_text("mine")
    others[2].mkdir()
    assert main(["cache", "show"]) == 0
    size = sum(p.stat().st_size for p in [*folder.rglob("kernel_*"), tuned] if p != others[1])
    assert capsys.readouterr().out == f"{folder}: 2 kernels, {size:,} bytes\n"
    assert size >= len("one = 1\n") + len("two = 22\n") + len("abcdefg")
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"{folder}: removed 2 kernels, {size:,} bytes\n"
    assert sorted(p for p in folder.glob("*") if p.name != "__pycache__") == sorted(others)
    assert not list(folder.glob("__pycache__/*"))
    sources.load.cache_clear()


def test_the_module_is_a_command():
    source = str(Path(torch_flexattn.__file__).parents[1])
    paths = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    line = [sys.executable, "-m", "torch_flexattn", "viz", "causal", "--seq", "2"]
    done = subprocess.run(
        line, capture_output=True, text=True, encoding="utf-8", check=False, timeout=120,
        env=os.environ | {"PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 │████│" in done.stdout
