"""Text files with one edge a line (SNAP, MUSAE), plain or gzipped."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from ..graph_arguments import check_count
from .graph_data import GraphData
from .text_file import at_row, naming, open_text, read_table
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
        TypeError: ``num_nodes`` that is no integer.
        ValueError: a line that does not hold two integers, or an id outside ``[0, num_nodes)``; both name the line.
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
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1):
        raise ValueError(f"delimiter must be one character or None for white space, got {delimiter!r}")
    if num_nodes is not None:
        check_count("num_nodes", num_nodes, least=0)
    with naming(path):
        with open_text(path) as file:
            skip = int(_is_header(file.readline(), delimiter))
        pairs = read_table(path, (int, int), skip=skip, delimiter=delimiter, more=True)
    edge_index = torch.from_numpy(np.ascontiguousarray(pairs.T))
    nodes = (int(edge_index.max()) + 1 if edge_index.numel() else 0) if num_nodes is None else num_nodes
    outside = ((edge_index < 0) | (edge_index >= nodes)).any(0).nonzero()
    if outside.numel():
        raise ValueError(f"{at_row(path, int(outside[0]), skip, '#')}, but ids must lie in [0, {nodes})")
    return GraphData(
        edge_index=undirected(edge_index, nodes) if edges == "undirected" else edge_index,
        num_nodes=nodes,
        name=Path(path).name.split(".")[0] if name is None else name,
    )


def _is_header(line: str, delimiter: str | None) -> bool:
    """Whether a first line names columns."""
    words = [word.strip().strip('"') for word in line.split("#")[0].split(delimiter)]
    return len(words) > 1 and bool(words[0]) and not words[0].lstrip("-").replace(".", "").isdigit()
