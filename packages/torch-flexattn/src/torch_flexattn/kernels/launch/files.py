"""The folder of kernels: generated sources, which Triton reads as files, and machine code."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import secrets
import tempfile
import warnings
from pathlib import Path
from typing import Any


def cache_dir() -> Path:
    """Where generated kernels are kept: ``TORCH_FLEXATTN_CACHE``, or the user's cache folder."""
    named = os.environ.get("TORCH_FLEXATTN_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_flexattn"


@functools.lru_cache(maxsize=4096)
def load(text: str) -> Any:
    """The module of a source, written once and found again by its digest."""
    name = f"kernel_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    path = cache_dir() / f"{name}.py"
    if _kept(path) != text.encode():
        path = written(path, text.encode()) or _elsewhere(path.name, text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _kept(path: Path) -> bytes | None:
    """What is there, if it can be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def written(path: Path, content: bytes) -> Path | None:
    """Store whole: of processes that write the same file, none sees half of it; ``None`` where nothing can be kept."""
    part = path.with_suffix(f".{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()  # of a full disk, what was written of it
        _say_not_kept(path.parent, error.strerror or type(error).__name__)
        return None
    return path


def _elsewhere(name: str, text: str) -> Path:
    """A file of this process only: Triton reads the source of a kernel, so it has to be one."""
    path = Path(tempfile.mkdtemp(prefix="torch_flexattn")) / name
    path.write_text(text, encoding="utf-8")
    return path


@functools.cache
def _say_not_kept(folder: Path, why: str) -> None:
    warnings.warn(f"kernels cannot be kept in {folder}, so each process makes them anew: {why}", stacklevel=2)
