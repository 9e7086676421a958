"""Kernels on their way to the device: what is read from sources, what is kept on disk, what is launched again."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from torch_flexattn.kernels.launch import binary as binaries
from torch_flexattn.kernels.launch import files
from torch_flexattn.kernels.launch import launch as launches
from torch_flexattn.kernels.launch.again import Again
from torch_flexattn.kernels.launch.binary import Binary, binary
from torch_flexattn.kernels.launch.kernel import Kernel
from torch_flexattn.kernels.launch.signature import Tile, kind_of, kinds_of
from torch_flexattn.stats import COUNTS

TEXT = '''"""A kernel."""

import triton
import triton.language as tl

from torch_flexattn.kernels.triton.softmax import with_sink


@triton.jit(do_not_specialize=["count", "step"])
def other(a, b, W: tl.constexpr):
    pass


@triton.jit(do_not_specialize=["count"])
def scale(
    x, out, count, step,  # what a comment says, counts for nothing
    factor, WIDTH: tl.constexpr,
):
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    tl.store(out + at, tl.load(x + at, mask=at < count) * factor, mask=at < count)
'''
MADE = Binary(b"\x7fELF\n\x00code", "scale", 128, 64, (8, 4, 128), (((1, 1, 64, 64), 3),))


@pytest.fixture
def folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TORCH_FLEXATTN_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def test_names_are_read_from_the_source() -> None:
    kernel = Kernel("scale", TEXT)
    assert kernel.names == ("x", "out", "count", "step", "factor")
    assert kernel.unspecialised == {"count"}
    assert Kernel("other", TEXT).names == ("a", "b")
    assert Kernel("other", TEXT).unspecialised == {"count", "step"}


def test_a_digest_is_of_all_that_a_kernel_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Kernel("scale", TEXT).digest
    assert Kernel("scale", TEXT).digest == first
    assert Kernel("other", TEXT).digest != first
    assert Kernel("scale", TEXT, language="gluon").digest != first
    from torch_flexattn.kernels.launch import kernel

    monkeypatch.setattr(kernel, "source_of", lambda module: f"{module} has changed")
    assert Kernel("scale", TEXT).digest != first


def test_kinds_of_arguments() -> None:
    t = torch.zeros(64)
    assert kind_of(t) == ("*fp32", True)
    assert kind_of(t[1:]) == ("*fp32", False)
    assert [kind_of(n) for n in (None, 1, 2, 32, 2**31, 2.0, True)] == [
        ("constexpr", None), ("constexpr", 1), ("i32", False), ("i32", True), ("i64", True), ("fp32", False),
        ("u1", False),
    ]  # fmt: skip
    assert kinds_of(("n", "m"), (1, 16), {"n", "m"}) == (("i32", False), ("i32", False))
    assert kind_of(Tile(t.view(1, 1, 8, 8), (64, 64, 8, 1), (1, 1, 4, 8))) == ("tensordesc", t.dtype, (1, 1, 4, 8))


def test_machine_code_is_kept_and_found(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(binaries, "compiled", lambda *told: made.append(told) or MADE)
    kernel, kinds, before = Kernel("scale", TEXT), (("*fp32", True),), COUNTS.kernels_loaded
    for _ in range(2):
        assert binary(kernel, kinds, {"WIDTH": 16}, 4, 3, 90) == MADE
    assert len(made) == 1
    assert COUNTS.kernels_loaded == before + 2
    for changed in [(kernel, (("*fp32", False),), {"WIDTH": 16}, 4, 3, 90), (kernel, kinds, {"WIDTH": 32}, 4, 3, 90),
                    (kernel, kinds, {"WIDTH": 16}, 8, 3, 90), (kernel, kinds, {"WIDTH": 16}, 4, 3, 80)]:  # fmt: skip
        binary(*changed)
    assert len(made) == 5


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"{" + b, lambda b: b"{}\n", lambda b: b""])
def test_damaged_files_are_made_anew(folder: Any, monkeypatch: pytest.MonkeyPatch, damage: Any) -> None:
    made = []
    monkeypatch.setattr(binaries, "compiled", lambda *told: made.append(told) or MADE)
    arguments = Kernel("scale", TEXT), (("*fp32", True),), {"WIDTH": 16}, 4, 3, 90
    binary(*arguments)
    (path,) = folder.glob("*.cubin")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(UserWarning, match="damaged"):
        assert binary(*arguments) == MADE
    assert len(made) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        binary(*arguments)


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCH_FLEXATTN_CACHE", str(tmp_path / "file" / "kernels"))
    monkeypatch.setattr(binaries, "compiled", lambda *told: MADE)
    files.load.cache_clear()
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert files.load("eleven = 11\n").eleven == 11
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert binary(Kernel("scale", TEXT), (("*fp32", True),), {}, 4, 3, 90) == MADE


def test_a_disk_that_is_full_or_forbidden_is_said_once(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, content: bytes) -> None:
        self.touch()
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    files.load.cache_clear()
    with pytest.warns(UserWarning, match=r"cannot be kept in .*: No space left on device$") as said:
        assert [files.load(f"number = {n}\n").number for n in (1, 2)] == [1, 2]
    assert len(said) == 1
    assert not list(folder.iterdir())


def test_sources_that_cannot_be_read_are_made_anew(folder: Any) -> None:
    for other in (b"number = 4\n", b"\xff\xfe", b""):
        files.load.cache_clear()
        assert files.load("number = 3\n").number == 3
        (path,) = folder.glob("kernel_*.py")
        path.write_bytes(other)
    path.unlink()
    path.mkdir()
    files.load.cache_clear()
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert files.load("number = 3\n").number == 3


class Launched:
    """What ``prepared.Prepared`` is asked for."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def run(self, places: tuple[int, ...]) -> None:
        self.seen.append(places)


def test_a_call_is_made_again_with_other_addresses() -> None:
    (q, k, v, sinks, table, sums), launched = (torch.zeros(2, 4, 8, 16) for _ in range(6)), Launched()
    results = torch.zeros(2, 4, 8, 16), torch.zeros(2, 4, 8), None
    again, combined = Again(), Launched()
    described: Any = Tile(k, k.stride(), (1, 1, 8, 16))
    first = [q, described, described, v, 3, sums, None, results[0], table]
    second = [results[1], results[0], sums, sinks]
    again.learn((q, k, v, sinks), results, [(launched, first), (combined, second)], (sums,))  # type: ignore[list-item]
    assert again.forward is not None
    other = [torch.ones(2, 4, 8, 16) for _ in range(4)]
    out, lse, largest = again.forward(*other) or (None, None, None)
    assert out is not None
    assert lse is not None
    assert largest is None
    assert (out.shape, lse.shape) == (q.shape, q.shape[:3])
    at = [t.data_ptr() for t in (*other, out, lse)]
    assert launched.seen[0][:4] == (at[0], at[1], at[1], at[2])
    assert launched.seen[0][5:] == (at[4], table.data_ptr())
    assert combined.seen[0] == (at[5], at[4], launched.seen[0][4], at[3])
    apart = torch.ones(2 * 4 * 8 * 16 + 1)[1:].view(2, 4, 8, 16)
    assert again.forward(apart, *other[1:]) is None


def test_a_call_whose_kernels_got_copies_is_not_learned() -> None:
    q, k, v = (torch.zeros(2, 4, 8, 16) for _ in range(3))
    results, again = (torch.zeros(2, 4, 8, 16), torch.zeros(2, 4, 8), None), Again()
    again.learn((q, k, v, None), results, [(Launched(), [q, k.clone(), v, *results])])  # type: ignore[list-item]
    assert again.forward is None


COMPILE = """
import sys
from torch_flexattn.kernels.launch.binary import compiled
from torch_flexattn.kernels.launch.kernel import Kernel
made = compiled(Kernel("scale", open(sys.argv[1]).read()),
                (("*fp32", True), ("*fp32", True), ("i32", False), ("constexpr", 1), ("fp32", False)),
                {"WIDTH": 128}, 4, 3, int(sys.argv[2]))
print(made.name, made.threads, made.parameters, made.code[:4])
"""


@pytest.mark.parametrize("arch", [80, 90])
def test_triton_compiles_for_an_architecture(folder: Any, tmp_path: Any, arch: int) -> None:
    pytest.importorskip("triton")
    (tmp_path / "source.py").write_text(TEXT)
    found = subprocess.run(
        [sys.executable, "-c", COMPILE, str(tmp_path / "source.py"), str(arch)], capture_output=True, text=True,
        timeout=120, check=False, env=os.environ | {"TRITON_INTERPRET": "0"},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout.strip() == "scale 128 (8, 8, 4, 4, 8, 8) b'\\x7fELF'"


def test_a_kernel_that_does_not_fit_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(launches, "binary", lambda *told: asked.append(told) or MADE)
    monkeypatch.setattr(launches, "most_shared", lambda device: MADE.shared - 1)
    monkeypatch.setattr(launches, "_architecture", lambda device: 90)
    monkeypatch.setattr(launches, "_functions", {})
    monkeypatch.setattr(launches, "interpreted", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    kernel = Kernel("other", TEXT)
    for _ in range(2):
        with pytest.raises(launches.DoesNotFit, match="128 bytes of shared memory, and the device has 127"):
            launches.launch(kernel, (1, 1), [torch.zeros(16), 3], W=16)
    assert len(asked) == 1
