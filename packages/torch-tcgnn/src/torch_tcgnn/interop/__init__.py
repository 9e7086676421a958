"""Graph formats of other libraries, read without importing them: everything a layer accepts in place of ``edge_index``."""

from .as_graph import as_graph, from_dgl, from_scipy, from_sparse, from_torch_sparse, read_edges
from .batch import from_batch
from .edges import Edges, Loops

__all__ = [
    "Edges",
    "Loops",
    "as_graph",
    "from_batch",
    "from_dgl",
    "from_scipy",
    "from_sparse",
    "from_torch_sparse",
    "read_edges",
]
