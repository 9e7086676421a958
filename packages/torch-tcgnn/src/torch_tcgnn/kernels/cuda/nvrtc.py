"""Compile CUDA C++ with NVRTC through ``cuda-core``, once a configuration: in memory, and on disk across processes.

The disk cache is keyed by source, options, architecture and compiler version. ``TORCH_TCGNN_CACHE`` moves it; a cache
that cannot be read or written costs a recompilation and one warning, never a failure.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import secrets
import threading
import warnings
from collections.abc import Callable
from importlib import resources, util
from pathlib import Path
from typing import Any

import torch

from ...cache_dir import cache_dir

INSTALL = "pip install 'torch-tcgnn[cuda]'"
OLDEST = 8
"""Major compute capability from which GPUs have what the sources use: TF32 products and asynchronous copies."""


@functools.cache
def unavailable() -> str | None:
    """Why CUDA C++ cannot be compiled here, or ``None`` when it can."""
    if util.find_spec("cuda") is None or util.find_spec("cuda.core") is None:
        return f"cuda-core is not installed: {INSTALL}"
    try:
        from cuda.bindings import nvrtc

        known = nvrtc.nvrtcGetSupportedArchs()[1]
    except Exception as error:  # the loader raises its own kinds where the NVRTC library is missing
        return f"NVRTC cannot be loaded ({error}): {INSTALL}"
    devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    for major, minor in map(torch.cuda.get_device_capability, devices):
        if major < OLDEST:
            return f"they need a GPU of compute capability {OLDEST}.0, and one here has {major}.{minor}"
        if 10 * major + minor not in known:
            return f"this NVRTC does not know sm_{major}{minor} of a GPU here: pip install -U nvidia-cuda-nvrtc"
    return None


def compile_cubin(source: str, macros: tuple[tuple[str, str], ...], arch: str) -> bytes:
    """Machine code of a source file of this package.

    Args:
        source: file name beside this module.
        macros: ``(name, value)`` pairs, as ``-Dname=value``.
        arch: such as ``"sm_90"``.

    Raises:
        RuntimeError: the source does not compile; the message holds the compiler's log.
    """
    from cuda.bindings import nvrtc
    from cuda.core import Program, ProgramOptions

    text = read_source(source)
    version = nvrtc.nvrtcVersion()[1:]
    key = hashlib.sha256(repr((text, macros, arch, version)).encode()).hexdigest()
    path = cache_dir() / f"{Path(source).stem}-{key[:32]}.cubin"
    cached = _read(path, key)
    if cached is not None:
        return cached
    options = ProgramOptions(arch=arch, std="c++17", define_macro=list(macros))
    try:
        code = Program(text, "c++", options=options).compile("cubin").code
    except Exception as error:
        raise RuntimeError(f"{source} did not compile for {arch} with {dict(macros)}:\n{error}") from error
    _write(path, key, bytes(code))
    return bytes(code)


def read_source(name: str) -> str:
    """A source file beside this module, its ``#include "…"`` lines replaced by the files they name."""
    text = resources.files(__package__).joinpath(name).read_text()
    return re.sub(r'^#include "(.+)"$', lambda match: read_source(match[1]), text, flags=re.MULTILINE)


def _read(path: Path, key: str) -> bytes | None:
    """The cached code, or ``None``; a file whose digest is wrong is reported and ignored."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, code = data[:32], data[32:]
    if digest != hashlib.sha256(key.encode() + code).digest():
        warnings.warn(f"torch_tcgnn: {path} is damaged; compiling again", stacklevel=2)
        return None
    return code


def _write(path: Path, key: str, code: bytes) -> None:
    """Store atomically: of threads, processes and machines that share the folder, none sees half a file."""
    part = path.with_suffix(f".{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(hashlib.sha256(key.encode() + code).digest() + code)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        _warn_unwritable(str(path.parent), str(error))


@functools.cache
def _warn_unwritable(folder: str, error: str) -> None:
    message = f"torch_tcgnn: cannot keep compiled kernels in {folder} ({error}); set TORCH_TCGNN_CACHE"
    warnings.warn(message, stacklevel=3)


@functools.cache
def kernel(source: str, macros: tuple[tuple[str, str], ...], name: str, device: int) -> Any:
    """One kernel of a configuration, loaded on one GPU (``cuda.core.Kernel``)."""
    return _module(source, macros, device).get_kernel(name)


@functools.cache
def _module(source: str, macros: tuple[tuple[str, str], ...], device: int) -> Any:
    from cuda.core import Device, ObjectCode

    Device(device).set_current()
    major, minor = torch.cuda.get_device_capability(device)
    return ObjectCode.from_cubin(compile_cubin(source, macros, f"sm_{major}{minor}"))


class _Thread(threading.local):
    has_context = False


_thread = _Thread()


def launcher() -> Callable[..., None]:
    """``cuda.core.launch``, on a thread that has a CUDA context: one of autograd's may have called nothing before."""
    launch, device = _cuda_core()
    if not _thread.has_context:
        device(torch.cuda.current_device()).set_current()
        _thread.has_context = True
    return launch


@functools.cache
def _cuda_core() -> tuple[Callable[..., None], Callable[[int], Any]]:
    from cuda.core import Device, launch

    return launch, Device


@functools.lru_cache(maxsize=4096)
def launch_config(grid: tuple[int, int, int], block: int, shared_bytes: int = 0) -> Any:
    """A launch shape, kept because graphs are used many times."""
    from cuda.core import LaunchConfig

    return LaunchConfig(grid=grid, block=block, shmem_size=shared_bytes)


def address(tensor: torch.Tensor) -> int:
    """Where a tensor's data is; 0 for an empty one, which the kernels read as absent."""
    return tensor.data_ptr() if tensor.numel() else 0


def current_stream(device: torch.device) -> Any:
    """PyTorch's current stream on a GPU, as cuda-core takes it."""
    return _stream(torch._C._cuda_getCurrentRawStream(device.index))


@functools.lru_cache(maxsize=256)
def _stream(handle: int) -> Any:
    from cuda.core import Stream

    return Stream.from_handle(handle)
