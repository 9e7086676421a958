"""Numbers and tables for a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows, the first a header, in columns: the first column to the left, the others to the right.

    Example:
        >>> print(aligned([["graph", "tiles"], ["cora", "7"]]))
        graph  tiles
        cora       7
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def number(value: float) -> str:
    """Three significant digits, thousands separated.

    Example:
        >>> number(0.01234), number(5.678), number(12345.6)
        ('0.0123', '5.68', '12,346')
    """
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.1e}"
    digits = next((d for d, limit in ((0, 100), (1, 10), (2, 1), (3, 0.1), (4, 0.01)) if abs(value) >= limit), 5)
    return f"{value:,.{digits}f}"


def check_json(path: str) -> None:
    """Raise before the work where :func:`write_json` could not save its results.

    Raises:
        ValueError: the folder does not exist, or a folder has the file's name.
    """
    if Path(path).is_dir() or not Path(path).parent.is_dir():
        raise ValueError(f"--json {path}: must be a file in a folder that exists")


def write_json(path: str, content: object) -> None:
    """Save ``content``; the folder must exist.

    Raises:
        OSError: the file cannot be written.
    """
    Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
