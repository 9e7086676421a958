"""The edges that a graph network is trained on, from the edges that a file lists.

Published files list edges once or twice, with self loops, in one direction or both. The field trains on the cleaned
graph: no self loops, both directions, each entry once. Every loader offers both by ``edges=``.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from ..graph_arguments import check_count, check_edge_index, check_ids

Edges = Literal["undirected", "listed"]


def undirected(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Drop self loops, add the reverse of every edge, keep each once; sorted by target, then source.

    Args:
        edge_index: ``[2, E]`` int64, ids in ``[0, num_nodes)``.
        num_nodes: number of nodes.

    Returns:
        ``[2, E']`` int64.

    Raises:
        TypeError: ``edge_index`` is no tensor, ``num_nodes`` no integer.
        ValueError: ``edge_index`` is not integer ``[2, E]``, or holds an id outside ``[0, num_nodes)``.

    Example:
        >>> undirected(torch.tensor([[0, 0, 2, 1], [1, 1, 2, 2]]), 3).tolist()
        [[1, 0, 2, 1], [0, 1, 1, 2]]
    """
    check_edge_index(edge_index)
    check_count("num_nodes", num_nodes, least=0)
    check_ids(edge_index, (num_nodes, num_nodes))
    source, target = edge_index[:, edge_index[0] != edge_index[1]]
    key = torch.cat([target * num_nodes + source, source * num_nodes + target])
    return from_keys(torch.unique_consecutive(key.sort()[0]), num_nodes)


def from_keys(key: Tensor, num_nodes: int) -> Tensor:
    """``[2, E]`` edges (source, target) from keys ``target · num_nodes + source``."""
    num_nodes = max(num_nodes, 1)
    return torch.stack([key % num_nodes, key // num_nodes])


def check_edges(edges: str) -> None:
    """Raise ValueError unless ``edges`` is one of the choices of :data:`Edges`."""
    if edges not in get_args(Edges):
        raise ValueError(f"edges must be one of {', '.join(map(repr, get_args(Edges)))}, got {edges!r}")
