"""Where the files of a data set lie.

``root=``, and then nothing else; without it ``../shared/data`` beside the working directory or the checkout, then
``$TORCH_EXT_DATA``. In each, a set lies in a folder of its own name, or directly.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

Root = str | os.PathLike[str] | None


def locate(folder: str, file: str, root: Root = None) -> Path:
    """A file of a data set.

    Args:
        folder: of the set.
        file: its name.
        root: the only place to look.

    Raises:
        FileNotFoundError: naming every place that was looked into.

    Example:
        >>> import pathlib, tempfile
        >>> root = pathlib.Path(tempfile.mkdtemp())
        >>> (root / "test.txt").touch()
        >>> locate("wikitext-2", "test.txt", root).name
        'test.txt'
    """
    bases = [Path(root)] if root is not None else list(search_path())
    for base in bases:
        for path in (base / folder / file, base / file):
            if path.is_file():
                return path
    places = ", ".join(map(str, bases))
    raise FileNotFoundError(
        f"{file} of the data set {folder!r} was not found in {places}; give root=, or set TORCH_EXT_DATA to a folder "
        f"that holds {folder}/"
    )


def search_path() -> Iterator[Path]:
    """Places that are looked into when no ``root`` is given, in order."""
    yield Path.cwd().parent / "shared" / "data"
    package = Path(__file__).resolve().parents[1]
    if package.parent.name == "src":  # packages/torch-flexattn/src/torch_flexattn, in a checkout
        yield package.parents[3].parent / "shared" / "data"
    if os.environ.get("TORCH_EXT_DATA"):
        yield Path(os.environ["TORCH_EXT_DATA"])
