"""Generated source as files: Triton reads the source of a kernel, so it has to be one."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

from ...stats import COUNTS


def cache_dir() -> Path:
    """Where generated kernels are kept: ``TORCH_FLEXATTN_CACHE``, or the user's cache folder."""
    named = os.environ.get("TORCH_FLEXATTN_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_flexattn"


@functools.lru_cache(maxsize=4096)
def load(text: str) -> Any:
    """The module of a source, written once and found again by its digest."""
    COUNTS.kernel_sources += 1
    name = f"kernel_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    path = cache_dir() / f"{name}.py"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path = _write(path, text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _write(path: Path, text: str) -> Path:
    """Store whole: of processes that write the same file, none sees half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        path = Path(tempfile.mkdtemp(prefix="torch_flexattn")) / path.name
    part = path.with_suffix(f".{secrets.token_hex(8)}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
    return path
