"""Graphs and operands of the GPU cases: as in `tasks`, but made on the device and each graph only once a run.

Generated graphs are stand-ins of the size and degree shape of the graph that their name begins with, and their node
numbers are shuffled: the hardest case for tensor-core tiles. ``communities`` is the opposite: a stochastic block model
of 512 groups of 128 nodes, in which eight neighbouring rows share so many columns that a gathered row serves 2.5 edges.
"""

from functools import cache

import torch
from torch import Tensor
from torch_tcgnn import data

from benchmarks.torch_tcgnn.tasks import Task

REAL = ("amazon_computers", "blogcatalog", "flickr", "musae_github", "PROTEINS")
GENERATED = (
    "artist-like", "soc-BlogCatalog-like", "arxiv-like", "amazon0505-like", "com-amazon-like", "YeastH-like",
    "communities",
)  # fmt: skip
GRAPHS = (*REAL, *GENERATED)
QUICK = ("amazon_computers", "artist-like", "communities")

__all__ = ["GENERATED", "GRAPHS", "QUICK", "REAL", "load_edges", "make_task", "tags_of"]


def tags_of(graph: str, *words: str) -> tuple[str, ...]:
    """The words, where the case runs, and what kind of graph it is."""
    return (*words, "gpu", "real" if graph in REAL else "generated", graph)


def load_edges(graph: str, device: torch.device) -> data.GraphData:
    """A graph by name; FileNotFoundError where the files of a real one are not there."""
    if graph in REAL:
        return data.load(graph)
    if graph == "communities":
        return data.sbm([128] * 512, 0.33, 3e-5, seed=0, device=device)
    return data.generate(graph.removesuffix("-like"), seed=0, device=device)


@cache
def _by_target(graph: str, device: torch.device) -> tuple[Tensor, Tensor, int]:
    """Edges sorted by target, their CSR pointer, and the number of nodes."""
    loaded = load_edges(graph, device)
    edge_index = loaded.edge_index.to(device)
    edge_index = edge_index[:, torch.argsort(edge_index[1], stable=True)].contiguous()
    degree = torch.bincount(edge_index[1], minlength=loaded.num_nodes)
    return edge_index, torch.cat([degree.new_zeros(1), degree.cumsum(0)]), loaded.num_nodes


def make_task(
    graph: str, dim: int, device: torch.device, *, dtype: torch.dtype = torch.float32, weighted: bool = False
) -> Task:
    """The task of a named graph, its operands drawn on the device."""
    edge_index, rowptr, num_nodes = _by_target(graph, device)
    random = torch.Generator(device).manual_seed(0)
    x, y, grad = (torch.randn(num_nodes, dim, generator=random, device=device).to(dtype) for _ in range(3))
    weight = torch.rand(edge_index.shape[1], generator=random, device=device).to(dtype) if weighted else None
    return Task(edge_index, rowptr, num_nodes, x, y, grad, weight)
