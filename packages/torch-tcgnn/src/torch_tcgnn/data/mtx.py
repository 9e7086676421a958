"""Matrix Market coordinate files (Boisvert, Pozo and Remington, NISTIR 5935, 1996) as graphs, plain or gzipped."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from .graph_data import GraphData
from .text_file import at_row, naming, open_text, read_table
from .undirected import Edges, check_edges, undirected

_FIELDS = ("real", "integer", "pattern")
_SYMMETRIES = ("general", "symmetric", "skew-symmetric")


def mtx(path: str | os.PathLike[str], *, edges: Edges = "listed", name: str | None = None) -> GraphData:
    """Load a square sparse matrix; entry (i, j) is an edge from node i to node j.

    Args:
        path: ``.mtx`` or ``.mtx.gz``.
        edges: ``"listed"``: the entries in file order, those of a symmetric file followed by their mirror images,
            with ``edge_weight`` unless the field is ``pattern``;
            ``"undirected"``: both directions, each once, no self loops.
        name: name of the graph; default: the file's.

    Raises:
        ValueError: not a square coordinate matrix of real numbers, or other entries than the header declares; a line
            at fault is named by its number and content.
        FileNotFoundError: no such file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "path.mtx")
        ...     _ = path.write_text("%%MatrixMarket matrix coordinate real symmetric\\n3 3 2\\n2 1 0.5\\n3 2 2\\n")
        ...     graph = mtx(path)
        >>> graph.edge_index.tolist(), graph.edge_weight.tolist()
        ([[1, 2, 0, 1], [0, 1, 1, 2]], [0.5, 2.0, 0.5, 2.0])
    """
    check_edges(edges)
    with naming(path):
        with open_text(path) as file:
            field, symmetry = _header(file.readline(), path)
            size, skip = file.readline(), 2
            while size.startswith("%") or (size and not size.strip()):
                size, skip = file.readline(), skip + 1
        try:
            rows, columns, entries = (int(n) for n in size.split())
        except ValueError:
            raise ValueError(f"{path}: the size line must hold three integers, got {size.strip()!r}") from None
        if rows != columns or rows < 0:
            raise ValueError(f"{path}: an adjacency must be square, got {rows} x {columns}")
        kinds = (int, int) if field == "pattern" else (int, int, float)
        table = read_table(path, kinds, skip=skip, comments="%")
    if table.shape[0] != entries:
        raise ValueError(f"{path}: the header declares {entries} entries, the file holds {table.shape[0]}")
    pairs = table[:, :2].T.astype(np.int64) - 1
    outside = ((pairs < 0) | (pairs >= rows) | (pairs + 1 != table[:, :2].T)).any(axis=0).nonzero()[0]
    if outside.size:
        raise ValueError(f"{at_row(path, int(outside[0]), skip, '%')}, but its indices must lie in [1, {rows}]")
    values = None if field == "pattern" else table[:, 2].astype(np.float32)
    if symmetry != "general":
        mirrored = pairs[0] != pairs[1]
        pairs = np.concatenate([pairs, pairs[::-1, mirrored]], axis=1)
        if values is not None:
            sign = -1 if symmetry == "skew-symmetric" else 1
            values = np.concatenate([values, sign * values[mirrored]])
    edge_index = torch.from_numpy(np.ascontiguousarray(pairs))
    weight = None if values is None else torch.from_numpy(values)
    if edges == "undirected":
        edge_index, weight = undirected(edge_index, rows), None
    stem = Path(path).name.removesuffix(".gz").removesuffix(".mtx")
    return GraphData(
        edge_index=edge_index, num_nodes=rows, name=stem if name is None else name, edge_weight=weight
    )  # fmt: skip


def _header(line: str, path: str | os.PathLike[str]) -> tuple[str, str]:
    words = line.lower().split()
    good = len(words) == 5 and words[:3] == ["%%matrixmarket", "matrix", "coordinate"]
    if not good or words[3] not in _FIELDS or words[4] not in _SYMMETRIES:
        raise ValueError(
            f"{path}: the first line must be '%%MatrixMarket matrix coordinate FIELD SYMMETRY' with FIELD in {_FIELDS} "
            f"and SYMMETRY in {_SYMMETRIES}, got {line.strip()!r}"
        )
    return words[3], words[4]
