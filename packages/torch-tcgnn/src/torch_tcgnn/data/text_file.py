"""Text files of numbers, plain or gzipped, whose faults are told by file, line and content."""

from __future__ import annotations

import gzip
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import IO

import numpy as np


def check_path(path: object) -> None:
    """Raise where ``path`` is none."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be a string or a path, got {type(path).__name__}")


def open_text(path: str | os.PathLike[str]) -> IO[str]:
    """Open ``path`` for reading, unpacking it when its name ends in ``.gz``."""
    check_path(path)
    return gzip.open(path, "rt") if os.fspath(path).endswith(".gz") else open(path)


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever is wrong with the content of a file is a ValueError that begins with its path."""
    try:
        yield
    except (ValueError, EOFError, IndexError, gzip.BadGzipFile, zlib.error, zipfile.BadZipFile) as error:
        message = str(error)
        raise ValueError(message if message.startswith(f"{path}:") else f"{path}: {message}") from error


def read_table(
    path: str | os.PathLike[str],
    kinds: Sequence[Callable[[str], int | float]],
    *,
    skip: int = 0,
    delimiter: str | None = None,
    comments: str = "#",
    more: bool = False,
) -> np.ndarray:
    """``[lines, len(kinds)]`` numbers, int64 where all ``kinds`` are ``int``, else float64.

    Args:
        path: the file.
        kinds: what a line holds, ``int`` or ``float`` a column.
        skip: lines before the first.
        delimiter: between numbers; ``None`` for white space.
        comments: what starts a comment. Empty lines are left out.
        more: whether a line may hold further columns, which are left out.

    Raises:
        ValueError: a line that holds something else; the message has its number and content.
    """
    rows = lines(path, skip, comments)
    first = next(rows, None)
    if first is None:
        return np.zeros((0, len(kinds)), dtype=np.int64)
    dtype = np.int64 if all(kind is int for kind in kinds) else np.float64
    with open_text(path) as file:
        for _ in islice(file, skip):
            pass
        try:
            use = tuple(range(len(kinds))) if more else None
            table = np.loadtxt(file, dtype=dtype, delimiter=delimiter, comments=comments, usecols=use, ndmin=2)
        except ValueError:
            _raise_for_line(path, kinds, skip, delimiter, comments, more)
            raise
    if table.shape[1] != len(kinds):
        _raise_for_line(path, kinds, skip, delimiter, comments, more)
    return table


def lines(path: str | os.PathLike[str], skip: int, comments: str) -> Iterator[tuple[int, str]]:
    """Number and text, without comments, of every line that holds some."""
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            text = line.split(comments)[0].strip()
            if number > skip and text:
                yield number, text


def at_row(path: str | os.PathLike[str], row: int, skip: int, comments: str) -> str:
    """Where row ``row`` of a table stands, for a message."""
    number, text = next(islice(lines(path, skip, comments), row, None))
    return f"{path}: line {number} is {text!r}"


def _raise_for_line(
    path: str | os.PathLike[str],
    kinds: Sequence[Callable[[str], int | float]],
    skip: int,
    delimiter: str | None,
    comments: str,
    more: bool,
) -> None:
    for number, text in lines(path, skip, comments):
        words = text.split(delimiter)
        try:
            if len(words) != len(kinds) and not (more and len(words) > len(kinds)):
                raise ValueError
            for kind, word in zip(kinds, words):
                if kind is int and not -(2**63) <= int(word) < 2**63:
                    raise ValueError
                kind(word)
        except ValueError:
            wanted = ("an integer", "two integers", "two integers and a number")[len(kinds) - 1]
            between = "white space" if delimiter is None else repr(delimiter)
            raise ValueError(f"{path}: line {number} must hold {wanted} separated by {between}, got {text!r}") from None
