"""Fetch a data set from where torch-geometric fetches it, with torch-geometric's own downloader.

Only the raw files are fetched. torch-geometric's data-set classes would also unpickle them without restriction; here
they go through this package's readers.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

PLANETOID_PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
_TU = ("PROTEINS", "MUTAG")
_AMAZON = {"amazon_photo": "photo", "amazon_computers": "computers"}


def download(name: str, base: Path) -> Path:
    """Fetch the files of data set ``name`` into a folder below ``base``.

    Args:
        name: a data set that torch-geometric knows an address for.
        base: existing or new folder.

    Returns:
        The folder with the files.

    Raises:
        ImportError: torch-geometric is missing.
        ValueError: torch-geometric has no such files.
        ConnectionError: the files could not be fetched; nothing half-written is left behind.
    """
    try:
        from torch_geometric.data import download_url, extract_zip
    except ImportError as error:
        raise ImportError("download=True uses torch-geometric: pip install 'torch-tcgnn[pyg]'") from error
    urls = _urls(name)
    base.mkdir(parents=True, exist_ok=True)
    folder = base / name
    with tempfile.TemporaryDirectory(dir=base, prefix=f".{name}-") as scratch:
        try:
            for url in urls:
                path = download_url(url, scratch, log=False)
                if path.endswith(".zip"):
                    extract_zip(path, scratch, log=False)
        except Exception as error:  # the downloader's own exceptions differ between versions and back ends
            raise ConnectionError(
                f"could not fetch {name!r} from {urls[0]} ({type(error).__name__}: {error}); on a machine without "
                f"network put the files into {folder} by hand"
            ) from error
        folder.mkdir(exist_ok=True)
        for path in Path(scratch).rglob("*"):
            if path.is_file() and path.suffix != ".zip":
                os.replace(path, folder / path.name)
    return folder


def _urls(name: str) -> list[str]:
    from torch_geometric.datasets import Amazon, CitationFull, Planetoid, TUDataset

    if name in ("cora", "citeseer", "pubmed"):
        return [f"{Planetoid.url}/ind.{name}.{part}" for part in PLANETOID_PARTS]
    if name in _AMAZON:
        return [f"{Amazon.url}amazon_electronics_{_AMAZON[name]}.npz"]
    if name == "cora_ml":
        return [CitationFull.url.format(name)]
    if name in _TU:
        return [f"{TUDataset.url}/{name}.zip"]
    raise ValueError(f"torch-geometric has no files of data set {name!r} in the form read here")
