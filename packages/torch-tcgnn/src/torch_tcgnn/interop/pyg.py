"""Edge lists: a ``[2, E]`` tensor, or PyG's ``EdgeIndex``, a tensor that knows its sizes.

``EdgeIndex`` is recognised by its class name; ``torch_geometric`` is never imported here.
"""

from __future__ import annotations

from torch import Tensor

from ..graph_arguments import check_edge_index, check_sizes
from .edges import Edges


def read_edge_index(edge_index: Tensor, num_nodes: int | tuple[int, int] | None, flow: str) -> Edges:
    """Read ``edge_index``; sizes come from ``num_nodes``, else from an ``EdgeIndex``, else stay unknown."""
    check_edge_index(edge_index)
    sizes: tuple[int | None, int | None]
    if num_nodes is None:
        sizes = (None, None)
        if is_edge_index(edge_index):
            sizes = edge_index.sparse_size()  # pyright: ignore[reportAttributeAccessIssue]
    else:
        sizes = check_sizes("num_nodes", num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes))
    if is_edge_index(edge_index):
        edge_index = edge_index.as_tensor()  # pyright: ignore[reportAttributeAccessIssue]
    if flow == "target_to_source":
        edge_index, sizes = edge_index.flip(0), (sizes[1], sizes[0])
    return Edges(edge_index, None, sizes[0], sizes[1])


def is_edge_index(adj: object) -> bool:
    """Whether ``adj`` is PyG's ``EdgeIndex``."""
    return type(adj).__name__ == "EdgeIndex" and type(adj).__module__.startswith("torch_geometric")
