"""Where this package keeps what it makes on a user's machine: compiled kernels and fitted rates."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """``$TORCH_TCGNN_CACHE``, else ``torch_tcgnn`` in the user's cache folder; need not exist yet."""
    root = os.environ.get("TORCH_TCGNN_CACHE")
    if root:
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torch_tcgnn"
