"""DGL graphs: edges in edge-id order, from source to destination nodes. Recognised by module, never imported here."""

from __future__ import annotations

from typing import Any

import torch

from .edges import Edges


def is_dgl(adj: object) -> bool:
    """Whether ``adj`` is a DGL graph."""
    return type(adj).__module__.split(".")[0] == "dgl" and hasattr(adj, "edges")


def read_dgl(graph: Any, num_nodes: int | tuple[int, int] | None) -> Edges:
    """Edges of a DGL graph with one edge type.

    Raises:
        ValueError: another size than ``num_nodes`` says, or several edge types.
    """
    if len(graph.canonical_etypes) != 1:
        raise ValueError(f"a DGL graph must have one edge type, got {graph.canonical_etypes}: slice it, g[etype]")
    size = (graph.num_src_nodes(), graph.num_dst_nodes())
    if num_nodes is not None:
        said = num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes)
        if tuple(said) != size:
            raise ValueError(f"the DGL graph has {size[0]} sources and {size[1]} targets, but num_nodes is {num_nodes}")
    source, target = graph.edges(form="uv", order="eid")
    return Edges(torch.stack([source.long(), target.long()]), None, *size)
