"""Graph-classification sets of the TU Dortmund collection (Morris et al., 2020) as one block-diagonal batch."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from .graph_data import GraphData
from .locate import Root, Source, locate
from .text_file import naming, read_table


def tu(name: str, root: Root = None, *, download: bool = False) -> GraphData:
    """Load a TU set with all its graphs in one :class:`GraphData`.

    Args:
        name: the set, as its files are named: ``"PROTEINS"``, ``"MUTAG"``, …
        root: folder with the files; default: see :mod:`torch_tcgnn.data.locate`.
        download: fetch missing files with torch-geometric.

    Returns:
        Edges in file order (these sets list both directions, without self loops); ``x`` one-hot node labels and
        ``edge_attr`` one-hot edge labels where the set has them; ``y`` ``[num_graphs]`` classes from 0.

    Raises:
        FileNotFoundError: the files are not there.
        TypeError: ``name`` is no string.
        ValueError: a malformed line, or files that disagree about the number of nodes or edges.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "TOY_A.txt").write_text("1, 2\\n2, 1\\n")
        ...     _ = Path(folder, "TOY_graph_indicator.txt").write_text("1\\n1\\n2\\n")
        ...     _ = Path(folder, "TOY_graph_labels.txt").write_text("-1\\n1\\n")
        ...     toy = tu("TOY", folder)
        >>> toy, toy.batch.tolist(), toy.y.tolist()
        (GraphData(TOY: 2 graphs, 3 nodes, 2 edges), [0, 0, 1], [0, 1])
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, got {type(name).__name__}")
    required = ("A", "graph_indicator", "graph_labels")
    files = tuple((f"{name}_{part}.txt", f"{name}_{part}.txt.gz") for part in required)
    adjacency, indicator, graph_labels = locate(Source(name, (f"tu_{name}", name), files), root, download=download)
    batch = _integers(indicator) - 1
    return GraphData(
        edge_index=(_integers(adjacency, 2) - 1).t().contiguous(),
        num_nodes=batch.shape[0],
        name=name,
        x=_one_hot(adjacency.parent, f"{name}_node_labels.txt"),
        y=torch.unique(_integers(graph_labels), return_inverse=True)[1],
        edge_attr=_one_hot(adjacency.parent, f"{name}_edge_labels.txt"),
        batch=batch,
    )


def _integers(path: Path, columns: int = 1) -> Tensor:
    with naming(path):
        table = read_table(path, (int,) * columns, delimiter="," if columns > 1 else None)
    return torch.from_numpy(table if columns > 1 else table[:, 0])


def _one_hot(folder: Path, file: str) -> Tensor | None:
    """``[rows, classes]`` float32 from a file of one label a line; ``None`` where there is no such file."""
    path = next((p for p in (folder / file, folder / f"{file}.gz") if p.is_file()), None)
    if path is None:
        return None
    labels = _integers(path)
    return torch.nn.functional.one_hot(labels - labels.min()).to(torch.float32)
