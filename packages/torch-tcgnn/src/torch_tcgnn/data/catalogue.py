"""Every real graph that has a loader, by name."""

from __future__ import annotations

from .digits import digits
from .edge_list import edge_list
from .graph_data import GraphData
from .locate import Root, Source, locate
from .mtx import mtx
from .nci import nci
from .npz import npz
from .planetoid import planetoid
from .tu import tu
from .undirected import Edges, check_edges

_PLANETOID = ("cora", "citeseer", "pubmed")
_TU = ("PROTEINS", "MUTAG")
_NPZ = {
    name: Source(name, (name,), ((f"{name}.npz",),)) for name in ("cora_ml", "polblogs", "blogcatalog", "flickr")
} | {
    f"amazon_{part}": Source(
        f"amazon_{part}", (f"amazon_{part}", part), ((f"amazon_{part}.npz", f"amazon_electronics_{part}.npz"),)
    )
    for part in ("photo", "computers")
}
_MTX = {
    name: Source(name, ("snap_small",), ((f"{name}.mtx.gz", f"{name}.mtx"),))
    for name in ("ca-CondMat", "p2p-Gnutella31")
}
_CSV = {
    name: Source(name, ("snap_small",), ((f"{name}.csv.gz", f"{name}.csv"),))
    for name in ("musae_facebook", "musae_github")
}

NAMES: tuple[str, ...] = (*_PLANETOID, *_NPZ, *_MTX, *_CSV, *_TU, "digits", "nci")
"""Names that :func:`load` knows."""


def load(name: str, root: Root = None, *, edges: Edges = "undirected", download: bool = False) -> GraphData:
    """Load a real graph by name.

    Args:
        name: one of :data:`NAMES`.
        root: folder with the files; default: see :mod:`torch_tcgnn.data.locate`.
        edges: ``"undirected"``: both directions, each once, no self loops; ``"listed"``: as the files have them.
            TU batches, digits and nci are clean as they are and ignore it.
        download: fetch missing files with torch-geometric.

    Raises:
        ValueError: unknown ``name`` or ``edges``.
        FileNotFoundError: the files are not there.
        ImportError: the package that ships ``"digits"`` (scikit-learn) or ``"nci"`` (RDKit) is missing.

    Example:
        >>> load("digits").num_nodes
        1797
    """
    if name in NAMES:
        check_edges(edges)
    if name in _PLANETOID:
        return planetoid(name, root, edges=edges, download=download)  # type: ignore[arg-type]
    if name in _TU:
        return tu(name, root, download=download)
    if name == "digits":
        return digits()
    if name == "nci":
        return nci()
    for sources, read in ((_NPZ, npz), (_MTX, mtx), (_CSV, edge_list)):
        if name in sources:
            (path,) = locate(sources[name], root, download=download)
            return read(path, edges=edges, name=name)
    raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
