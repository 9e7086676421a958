"""Text files that may be gzipped."""

from __future__ import annotations

import gzip
import os
from typing import IO


def open_text(path: str | os.PathLike[str]) -> IO[str]:
    """Open ``path`` for reading, unpacking it when its name ends in ``.gz``."""
    return gzip.open(path, "rt") if os.fspath(path).endswith(".gz") else open(path)
