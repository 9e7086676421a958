"""Pictures as files; the name says which kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import InputError
from .draw import Drawable
from .png import png
from .svg import svg
from .text import text

SUFFIXES = (".png", ".svg", ".txt")


def save(path: str | Path, what: Drawable, q_len: int | None = None, kv_len: int | None = None, **options: Any) -> None:
    """Write a picture to a file.

    Args:
        path: its name, which ends in ``.png``, ``.svg`` or ``.txt``; the folder must exist.
        what: a block mask, a mask or a score modification.
        q_len: queries.
        kv_len: keys.
        options: those of :func:`torch_flexattn.viz.png`, ``svg`` or ``text``.

    Raises:
        InputError: another ending, or what these functions refuse.
        OSError: the file cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> from torch_flexattn import masks
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "causal.svg"
        >>> save(path, masks.causal(), 2048)
        >>> path.stat().st_size > 1000
        True
    """
    path = Path(path)
    check_suffix("path", path)
    if path.suffix == ".png":
        path.write_bytes(png(what, q_len, kv_len, **options))
        return
    content = (
        svg(what, q_len, kv_len, **options) if path.suffix == ".svg" else text(what, q_len, kv_len, **options) + "\n"
    )
    path.write_text(content, encoding="utf-8")


def check_suffix(name: str, path: Path) -> None:
    """A picture can be written to a file of this name.

    Raises:
        InputError: another ending.

    Example:
        >>> check_suffix("path", Path("mask.png"))
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"{name} must end in {', '.join(SUFFIXES)}, got {str(path)!r}")
