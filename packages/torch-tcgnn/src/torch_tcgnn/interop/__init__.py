"""Graph formats of other libraries, read without importing them: what a layer accepts in place of ``edge_index``."""

from .as_graph import as_graph, from_dgl, from_scipy, from_sparse, from_torch_sparse, read_edges
from .batch import from_batch
from .edges import Edges

__all__ = [
    "Edges",
    "as_graph",
    "from_batch",
    "from_dgl",
    "from_scipy",
    "from_sparse",
    "from_torch_sparse",
    "read_edges",
]
