"""CUDA C++ compiled by NVRTC, which needs no GPU: the cache on disk and every fault that a disk may have."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch_tcgnn.kernels.cuda import nvrtc
from torch_tcgnn.kernels.cuda.csr_spmm import configure

if missing := nvrtc.unavailable():
    pytest.skip(missing, allow_module_level=True)

MACROS = configure(torch.float32, 32, 16, False, torch.int32, torch.int32).macros()
HALF = configure(torch.float16, 32, 16, False, torch.int32, torch.int32).macros()
COMPILE = ("csr_spmm.cu", MACROS, "sm_90")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Where binaries are kept; not there yet."""
    place = tmp_path / "kernels"
    monkeypatch.setenv("TORCH_TCGNN_CACHE", str(place))
    nvrtc._warn_unwritable.cache_clear()
    return place


def compiled(*, warning: str | None = None, compiles: bool = True) -> bytes:
    """The binary, and whether NVRTC ran and exactly one warning (or none) was given on the way."""
    from cuda.core import Program

    ran = []
    compile_now = Program.compile

    class Watched(Program):
        def compile(self, *args: object, **kwargs: object) -> object:
            ran.append(args)
            return compile_now(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patch.setattr("cuda.core.Program", Watched)
        code = nvrtc.compile_cubin(*COMPILE)
    assert [str(w.message) for w in caught if warning is None or warning not in str(w.message)] == []
    assert len(caught) == (0 if warning is None else 1)
    assert bool(ran) == compiles
    return code


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_a_second_process_reads_what_the_first_compiled(folder):
    code = compiled()
    assert code[:4] == b"\x7fELF"
    assert only_file(folder).suffix == ".cubin"
    assert compiled(compiles=False) == code


@pytest.mark.parametrize("harm", ["flipped byte", "cut short", "empty", "another kernel's"])
def test_a_damaged_file_is_compiled_again_with_one_warning(folder, harm):
    code = compiled()
    path = only_file(folder)
    data = bytearray(path.read_bytes())
    if harm == "flipped byte":
        data[len(data) // 2] ^= 1
    elif harm == "another kernel's":
        nvrtc.compile_cubin("csr_spmm.cu", MACROS, "sm_80")
        data = next(p for p in folder.iterdir() if p != path).read_bytes()
    path.write_bytes(data[: {"cut short": len(data) // 2, "empty": 0}.get(harm)])
    assert compiled(warning=f"{path} is damaged; compiling again") == code
    assert compiled(compiles=False) == code


def test_a_folder_that_cannot_be_made_costs_one_warning_a_process(folder):
    folder.write_text("a file where the folder should be")
    code = compiled(warning=f"cannot keep compiled kernels in {folder}")
    assert compiled() == code
    assert folder.read_text() == "a file where the folder should be"


def test_a_folder_without_the_right_to_write_costs_one_warning(folder, monkeypatch):
    folder.mkdir(mode=0o555)
    if os.access(folder, os.W_OK):  # the superuser may write anywhere
        monkeypatch.setattr(Path, "write_bytes", refuse(errno.EACCES))
    assert compiled(warning="set TORCH_TCGNN_CACHE") == compiled()
    assert list(folder.iterdir()) == []


def test_a_folder_that_was_filled_before_it_became_read_only_is_still_read(folder, monkeypatch):
    code = compiled()
    monkeypatch.setattr(Path, "write_bytes", refuse(errno.EACCES))
    assert compiled(compiles=False) == code


def test_a_full_disk_leaves_no_half_file(folder, monkeypatch):
    monkeypatch.setattr(Path, "replace", refuse(errno.ENOSPC))
    compiled(warning="No space left on device")
    assert list(folder.iterdir()) == []


def refuse(code: int):
    def call(*args: object, **kwargs: object) -> None:
        raise OSError(code, {errno.EACCES: "Permission denied", errno.ENOSPC: "No space left on device"}[code])

    return call


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX permissions")
def test_who_may_read_the_folder_may_read_the_files(folder):
    before = os.umask(0o022)
    try:
        compiled()
    finally:
        os.umask(before)
    assert only_file(folder).stat().st_mode & 0o777 == 0o644


def test_threads_that_write_one_file_leave_a_whole_one(folder):
    code, key, path = bytes(range(256)) * 4_000, "key", folder / "kernel.cubin"
    start = threading.Barrier(8)

    def write(_: int) -> list[bool]:
        start.wait()
        return [(nvrtc._write(path, key, code), nvrtc._read(path, key) == code)[1] for _ in range(30)]

    with warnings.catch_warnings(), ThreadPoolExecutor(8) as pool:
        warnings.simplefilter("error")
        assert all(all(found) for found in pool.map(write, range(8)))
    assert list(folder.iterdir()) == [path]


def test_processes_that_compile_one_kernel_at_once_agree(folder):
    script = (
        "import hashlib, sys, warnings; warnings.simplefilter('error')\n"
        "from torch_tcgnn.kernels.cuda import nvrtc\n"
        f"print('ready', flush=True); sys.stdin.readline(); code = nvrtc.compile_cubin(*{COMPILE!r})\n"
        "print(hashlib.sha256(code).hexdigest())"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    workers = [subprocess.Popen([sys.executable, "-c", script], env=here, **pipes) for _ in range(2)]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()
    found = [worker.communicate(timeout=60)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert len(set(found)) == 1
    only_file(folder)
    compiled(compiles=False)


def test_source_options_architecture_and_compiler_have_files_of_their_own(folder, monkeypatch):
    from cuda.bindings import nvrtc as compiler

    compiled()
    nvrtc.compile_cubin(*COMPILE[:2], "sm_80")
    nvrtc.compile_cubin("csr_spmm.cu", HALF, "sm_90")
    read = nvrtc.read_source
    monkeypatch.setattr(nvrtc, "read_source", lambda name: read(name) + "\n// edited")
    nvrtc.compile_cubin(*COMPILE)
    monkeypatch.undo()
    monkeypatch.setenv("TORCH_TCGNN_CACHE", str(folder))
    monkeypatch.setattr(compiler, "nvrtcVersion", lambda: (0, 99, 9))
    nvrtc.compile_cubin(*COMPILE)
    assert len(list(folder.iterdir())) == 5


def test_a_source_that_does_not_compile_shows_the_log_and_is_not_kept(folder):
    message = r"(?s)csr_spmm\.cu did not compile for sm_90 with .*'TYPE': '0'.*VEC.* undefined"
    with pytest.raises(RuntimeError, match=message):
        nvrtc.compile_cubin("csr_spmm.cu", (("TYPE", "0"),), "sm_90")
    assert not folder.exists()


def test_an_architecture_that_the_compiler_does_not_know_is_named(folder):
    with pytest.raises(RuntimeError, match=r"csr_spmm\.cu did not compile for sm_1"):
        nvrtc.compile_cubin("csr_spmm.cu", MACROS, "sm_1")


@pytest.fixture
def gpus(monkeypatch):
    """Pretends that GPUs of these compute capabilities are there."""

    def pretend(*capabilities: tuple[int, int]) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
        monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.__getitem__)
        nvrtc.unavailable.cache_clear()

    yield pretend
    nvrtc.unavailable.cache_clear()


@pytest.mark.parametrize(
    "capabilities, reason",
    [
        ([(8, 0), (9, 0)], None),
        ([(9, 0), (7, 5)], "need a GPU of compute capability 8.0, and one here has 7.5"),
        ([(8, 0), (99, 9)], "does not know sm_999 of a GPU here: pip install"),
    ],
)
def test_a_gpu_that_the_sources_do_not_suit_is_known_before_anything_is_compiled(gpus, capabilities, reason):
    gpus(*capabilities)
    found = nvrtc.unavailable()
    assert found is None if reason is None else reason in found
