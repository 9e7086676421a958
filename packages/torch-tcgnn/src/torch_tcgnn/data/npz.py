"""Graphs stored as compressed-row arrays in one ``.npz`` file (the form of gnn-benchmark, nettack and graph2gauss).

Keys ``adj_{data,indices,indptr,shape}``, optionally ``attr_…`` (features) and ``labels``. Row is the source of an edge.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from .csr_arrays import CsrArrays
from .graph_data import GraphData
from .text_file import check_path, naming
from .undirected import Edges, check_edges, undirected

Features = Literal["dense", "sparse", "none"]


def npz(
    path: str | os.PathLike[str], *, edges: Edges = "undirected", features: Features = "dense", name: str | None = None
) -> GraphData:
    """Load a graph from an ``.npz`` file of compressed-row arrays.

    Args:
        path: the file; never unpickled.
        edges: ``"undirected"``: both directions, each once, no self loops, no weights;
            ``"listed"``: as stored, with ``edge_weight`` unless all weights are 1.
        features: ``x`` as a dense float32 tensor, as a sparse CSR tensor, or not at all. Values as stored.
        name: name of the graph; default: the file's.

    Returns:
        :class:`GraphData` without masks. Classes are numbered without gaps, in the order of the stored labels.

    Raises:
        TypeError: ``path`` is none.
        ValueError: an unknown option, a missing key, or arrays that do not form a square matrix.
        FileNotFoundError: no such file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "path.npz")
        ...     np.savez(path, adj_data=[1, 1], adj_indices=[1, 2], adj_indptr=[0, 1, 2, 2], adj_shape=[3, 3])
        ...     npz(path), npz(path, edges="listed")
        (GraphData(path: 3 nodes, 4 edges), GraphData(path: 3 nodes, 2 edges))
    """
    check_edges(edges)
    if features not in get_args(Features):
        raise ValueError(f"features must be one of {', '.join(map(repr, get_args(Features)))}, got {features!r}")
    check_path(path)
    with naming(path):
        with open(path, "rb") as start:
            if start.read(2) != b"PK":
                raise ValueError("not an .npz file, which is a zip archive of arrays")
        with np.load(path, allow_pickle=False) as file:
            adjacency = _csr(file, "adj", path)
            attributes = _csr(file, "attr", path) if features != "none" and "attr_data" in file else None
            labels = file.get("labels")
        num_nodes, columns = adjacency.shape
        if num_nodes != columns:
            raise ValueError(f"{path}: the adjacency must be square, got {num_nodes} x {columns}")
        edge_index, weight = adjacency.coordinates(), None
        if edges == "undirected":
            edge_index = undirected(edge_index, num_nodes)
        elif not (adjacency.data == 1).all():
            weight = torch.from_numpy(adjacency.data.astype(np.float32))
        x: Tensor | None = None
        if attributes is not None:
            x = attributes.dense() if features == "dense" else attributes.sparse()
        return GraphData(
            edge_index=edge_index,
            num_nodes=num_nodes,
            name=Path(path).stem if name is None else name,
            x=x,
            y=None if labels is None else torch.from_numpy(np.unique(labels, return_inverse=True)[1].astype(np.int64)),
            edge_weight=weight,
        )


def _csr(file: np.lib.npyio.NpzFile, prefix: str, path: str | os.PathLike[str]) -> CsrArrays:
    missing = [key for key in ("data", "indices", "indptr", "shape") if f"{prefix}_{key}" not in file]
    if missing:
        raise ValueError(f"{path}: key {prefix}_{missing[0]} is missing, found {', '.join(sorted(file.files))}")
    data, indices, indptr, shape = (file[f"{prefix}_{key}"] for key in ("data", "indices", "indptr", "shape"))
    if shape.shape != (2,):
        raise ValueError(f"{path}: {prefix}_shape must hold two numbers, got {shape.tolist()}")
    return CsrArrays(data, indices, indptr, (int(shape[0]), int(shape[1])))
