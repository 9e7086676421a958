"""Inputs that every contender of a case shares: one graph, its CSR, features, weights and an output gradient.

Quick cases run on Cora or, where its files are not there, on a generated graph, so that a first look needs no data.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_tcgnn import data

REAL = ("amazon_photo", "amazon_computers", "blogcatalog", "flickr", "musae_github", "PROTEINS")
CORA = data.Source("cora", ("cora",), (("ind.cora.graph",),))
STAND_IN = "com-amazon/40-like"
"""A fortieth of a graph of com-amazon's degree shape: 8,372 nodes."""

__all__ = ["QUICK", "REAL", "Task", "load_graph", "make_task", "quick_graphs"]


def quick_graphs() -> tuple[str, ...]:
    """Graphs of the quick cases on this machine."""
    try:
        data.locate(CORA)
    except FileNotFoundError:
        return (STAND_IN,)
    return ("cora",)


QUICK = quick_graphs()


@dataclass(frozen=True)
class Task:
    """A graph and dense operands.

    Attributes:
        edge_index: ``[2, E]`` int64, sorted by target, so that edge order and CSR order are one.
        rowptr: ``[N + 1]`` int64 of the CSR whose rows are targets.
        x, y: ``[N, F]`` standard normal.
        grad: ``[N, F]`` gradient of the output.
        weight: ``[E]`` uniform in [0, 1), or ``None``.
    """

    edge_index: Tensor
    rowptr: Tensor
    num_nodes: int
    x: Tensor
    y: Tensor
    grad: Tensor
    weight: Tensor | None

    @property
    def col(self) -> Tensor:
        """``[E]`` sources in CSR order."""
        return self.edge_index[0]

    @property
    def num_edges(self) -> int:
        """``E``."""
        return self.edge_index.shape[1]

    @property
    def index_bytes(self) -> int:
        """Bytes of the smallest CSR structure of the graph (int32)."""
        return 4 * (self.num_nodes + 1 + self.num_edges)


def load_graph(graph: str) -> data.GraphData:
    """A real graph by name, or a stand-in ``NAME/DIVISOR-like``; FileNotFoundError where a real one's files lack."""
    if not graph.endswith("-like"):
        return data.load(graph)
    name, divisor = graph.removesuffix("-like").split("/")
    return data.generate(name, seed=0, scale=1 / float(divisor))


def make_task(graph: str, dim: int, device: torch.device, *, weighted: bool = False, seed: int = 0) -> Task:
    """The task of a named graph; FileNotFoundError where its files are not there."""
    loaded = load_graph(graph)
    order = torch.argsort(loaded.edge_index[1], stable=True)
    edge_index = loaded.edge_index[:, order].contiguous()
    degree = torch.bincount(edge_index[1], minlength=loaded.num_nodes)
    rowptr = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
    random = torch.Generator().manual_seed(seed)
    x, y, grad = (torch.randn(loaded.num_nodes, dim, generator=random).to(device) for _ in range(3))
    weight = torch.rand(edge_index.shape[1], generator=random).to(device) if weighted else None
    return Task(edge_index.to(device), rowptr.to(device), loaded.num_nodes, x, y, grad, weight)
