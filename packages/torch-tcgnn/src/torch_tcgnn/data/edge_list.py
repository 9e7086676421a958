"""Text files with one edge a line (SNAP, MUSAE), plain or gzipped."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from .graph_data import GraphData
from .text_file import open_text
from .undirected import Edges, check_edges, undirected


def edge_list(
    path: str | os.PathLike[str],
    *,
    delimiter: str | None = ",",
    edges: Edges = "undirected",
    num_nodes: int | None = None,
    name: str | None = None,
) -> GraphData:
    """Load a graph from lines ``source<delimiter>target``.

    Args:
        path: the file, or its gzipped form ``….gz``. ``#`` starts a comment; a header line of words is skipped.
        delimiter: between the two ids; ``None`` for white space.
        edges: ``"undirected"``: both directions, each once, no self loops; ``"listed"``: the lines as they are.
        num_nodes: number of nodes; default: the largest id plus one.
        name: name of the graph; default: the file's.

    Raises:
        ValueError: a line that is not two integers, or an id outside ``[0, num_nodes)``.
        FileNotFoundError: no such file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "path.csv")
        ...     _ = path.write_text("source,target\\n0,1\\n1,2\\n")
        ...     edge_list(path), edge_list(path, edges="listed")
        (GraphData(path: 3 nodes, 4 edges), GraphData(path: 3 nodes, 2 edges))
    """
    check_edges(edges)
    with open_text(path) as file:
        first = file.readline()
        header = first.split(delimiter)[0].strip().strip('"')
        file.seek(0)
        skip = int(bool(header) and not header.startswith("#") and not header.lstrip("-").isdigit())
        pairs = np.loadtxt(file, dtype=np.int64, delimiter=delimiter, usecols=(0, 1), skiprows=skip, ndmin=2)
    edge_index = torch.from_numpy(np.ascontiguousarray(pairs.T))
    low, high = (int(v) for v in edge_index.aminmax()) if edge_index.numel() else (0, -1)
    nodes = high + 1 if num_nodes is None else num_nodes
    if low < 0 or high >= nodes:
        raise ValueError(f"{path}: ids must lie in [0, {nodes}), got {low if low < 0 else high}")
    return GraphData(
        edge_index=undirected(edge_index, nodes) if edges == "undirected" else edge_index,
        num_nodes=nodes,
        name=Path(path).name.split(".")[0] if name is None else name,
    )
