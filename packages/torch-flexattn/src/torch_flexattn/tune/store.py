"""The winners of past timings: one small JSON file beside the generated kernels.

It is read once a process, and written whole: of processes that write, none sees half a file, and each keeps what the
others have found. What is no such file is replaced. Where nothing can be written, winners last as long as the process.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import warnings
from pathlib import Path
from typing import Any

from ..kernels.launch.files import cache_dir

FORMAT = 1
"""Of the file; another one is replaced. To be raised when the kernels change so much that winners are none any more."""
NAME = "tuned.json"


class Store:
    """Winners by key.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept: dict[str, dict[str, Any]] = self._read()

    def get(self, key: str) -> dict[str, Any] | None:
        """What was kept under a key, or ``None``."""
        return self._kept.get(key)

    def put(self, key: str, winner: dict[str, Any]) -> None:
        """Keep a winner, in memory and on disk."""
        self._kept = {**self._read(), **self._kept, key: winner}
        part = self.path.with_name(f"{NAME}.{secrets.token_hex(8)}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({"format": FORMAT, "winners": self._kept}, indent=1), encoding="utf-8")
            part.replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            warnings.warn(
                f"what tuning found is lost when this process ends: {self.path} cannot be written ({error.strerror}); "
                "set TORCH_FLEXATTN_CACHE to a folder that can",
                stacklevel=2,
            )

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as error:
            warnings.warn(f"{self.path} cannot be read and will be written anew: {error}", stacklevel=2)
            return {}
        whole = isinstance(found, dict) and found.get("format") == FORMAT and isinstance(found.get("winners"), dict)
        if not whole:
            return {}
        return {key: kept for key, kept in found["winners"].items() if isinstance(kept, dict)}


_stores: dict[Path, Store] = {}


def store() -> Store:
    """That of the cache folder."""
    path = cache_dir() / NAME
    if path not in _stores:
        _stores[path] = Store(path)
    return _stores[path]


def forget() -> None:
    """Read files again."""
    _stores.clear()
