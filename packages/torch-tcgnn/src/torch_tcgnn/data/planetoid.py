"""Cora, CiteSeer and PubMed with the public split of Yang, Cohen and Salakhutdinov (Planetoid, ICML 2016).

Eight files a set; ``allx``/``ally`` hold the nodes outside the test range, ``tx``/``ty`` the test nodes in the order of
``test.index``, ``graph`` the adjacency lists. The training nodes are the first ``len(y)``, the next 500 validate.
CiteSeer's test range misses 15 ids: those nodes have zero features, class 0 (as everywhere in the field) and no mask.
"""

from __future__ import annotations

from itertools import chain
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .graph_data import GraphData
from .locate import Root, Source, locate
from .restricted_pickle import load_arrays
from .text_file import naming, read_table
from .undirected import Edges, check_edges, undirected

_PARTS = ("y", "tx", "ty", "allx", "ally", "graph", "test.index")
_NAMES = ("cora", "citeseer", "pubmed")


def planetoid(
    name: Literal["cora", "citeseer", "pubmed"],
    root: Root = None,
    *,
    edges: Edges = "undirected",
    download: bool = False,
) -> GraphData:
    """Load a Planetoid citation graph.

    Args:
        name: ``"cora"``, ``"citeseer"`` or ``"pubmed"``, in any case.
        root: folder with the files; default: see :mod:`torch_tcgnn.data.locate`.
        edges: ``"undirected"``: without self loops and duplicates, sorted by target (torch-geometric's edges);
            ``"listed"``: as the adjacency lists give them.
        download: fetch missing files with torch-geometric.

    Returns:
        :class:`GraphData` with dense float32 ``x``, int64 ``y`` and the three masks.

    Raises:
        TypeError: ``name`` is no string.
        ValueError: unknown ``name`` or ``edges``, or a malformed line.
        FileNotFoundError: the files are not there.
        pickle.UnpicklingError: a file holds more than arrays.

    Example:
        >>> planetoid("cora")  # doctest: +SKIP
        GraphData(cora: 2708 nodes, 10556 edges)
        >>> planetoid("dblp")
        Traceback (most recent call last):
        ValueError: name must be one of 'cora', 'citeseer', 'pubmed', got 'dblp'
    """
    check_edges(edges)
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, got {type(name).__name__}")
    name = name.lower()  # type: ignore[assignment]
    if name not in _NAMES:
        raise ValueError(f"name must be one of {', '.join(map(repr, _NAMES))}, got {name!r}")
    source = Source(name, (name,), tuple((f"ind.{name}.{part}",) for part in _PARTS))
    *pickles, index_file = locate(source, root, download=download)
    y, tx, ty, allx, ally, graph = (load_arrays(path) for path in pickles)
    with naming(index_file):
        test = torch.from_numpy(read_table(index_file, (int,))[:, 0])
    num_nodes = max(int(test.max()), max(graph)) + 1

    x = torch.zeros(num_nodes, allx.shape[1])
    x[: allx.shape[0]] = allx.dense()
    x[test] = tx.dense()
    label = torch.zeros(num_nodes, dtype=torch.int64)
    label[: ally.shape[0]] = torch.from_numpy(ally.argmax(axis=1))
    label[test] = torch.from_numpy(ty.argmax(axis=1))

    edge_index = _adjacency(graph)
    train = y.shape[0]
    return GraphData(
        edge_index=edge_index if edges == "listed" else undirected(edge_index, num_nodes),
        num_nodes=num_nodes,
        name=name,
        x=x,
        y=label,
        train_mask=_mask(torch.arange(train), num_nodes),
        val_mask=_mask(torch.arange(train, train + 500), num_nodes),
        test_mask=_mask(test, num_nodes),
    )


def _adjacency(graph: dict[int, list[int]]) -> Tensor:
    """``[2, E]`` from adjacency lists, in their order."""
    lengths = np.fromiter((len(targets) for targets in graph.values()), dtype=np.int64, count=len(graph))
    source = np.repeat(np.fromiter(graph, dtype=np.int64, count=len(graph)), lengths)
    target = np.fromiter(chain.from_iterable(graph.values()), dtype=np.int64, count=int(lengths.sum()))
    return torch.from_numpy(np.stack([source, target]))


def _mask(ids: Tensor, num_nodes: int) -> Tensor:
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[ids] = True
    return mask
