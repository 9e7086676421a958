"""Self loops of an edge list, and the symmetric normalisation of GCN (Kipf & Welling, 2017), as PyG computes both."""

from __future__ import annotations

import torch
from torch import Tensor

from .adjacency import Adjacency
from .row_sum import row_sum, spread_rows


def with_loops(
    edge_index: Tensor, weight: Tensor | None, num_nodes: int, fill: float, *, remaining: bool
) -> tuple[Tensor, Tensor | None]:
    """Edges without loops in their order, then one loop a node; weights where there are any, or ``fill`` is not 1.

    Args:
        edge_index: ``[2, E]`` sources, then targets.
        weight: ``[E]`` or ``[E, H]``, or ``None``.
        num_nodes: number of nodes.
        fill: weight of an added loop.
        remaining: a loop that exists keeps its weight; of several the last.

    Example:
        >>> with_loops(torch.tensor([[0, 1], [1, 1]]), torch.tensor([5.0, 7.0]), 2, 1.0, remaining=True)[1]
        tensor([5., 1., 7.])
    """
    loops = torch.arange(num_nodes, device=edge_index.device)
    keep = edge_index[0] != edge_index[1]
    if weight is None and fill != 1.0:
        weight = torch.ones(edge_index.shape[1], device=edge_index.device)
    if weight is not None:
        loop_weight = weight.new_full((num_nodes, *weight.shape[1:]), fill)
        if remaining:
            loop = (~keep).nonzero().view(-1)
            last = loops.new_full((num_nodes,), -1).scatter_reduce(0, edge_index[0][loop], loop, "amax")
            node = (last >= 0).nonzero().view(-1)
            loop_weight = loop_weight.index_put((node,), weight[last[node]])
        weight = torch.cat([weight[keep], loop_weight])
    return torch.cat([edge_index[:, keep], loops.expand(2, -1)], dim=1), weight


def symmetric(adjacency: Adjacency, weight: Tensor) -> Tensor:
    """``d_i^-1/2 · weight · d_j^-1/2`` with the degrees ``d`` of targets; 0 at nodes of degree zero.

    Args:
        adjacency: a square one.
        weight: ``[E]`` in input edge order, as is the result; 16-bit weights are computed with in float32.

    Example:
        >>> from torch_tcgnn.adjacency import compress
        >>> row, col = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])
        >>> symmetric(compress(row, col, 2, 2), torch.tensor([3.0, 1.0, 1.0]))
        tensor([0.7500, 0.5000, 1.0000])
    """
    entries = adjacency.to_entries(weight.float() if weight.dtype.itemsize == 2 else weight)
    scale = row_sum(entries, adjacency.rowptr).pow(-0.5)
    scale = scale.masked_fill(scale == float("inf"), 0.0)
    of_target = spread_rows(scale, adjacency.rowptr, adjacency.num_edges)
    return adjacency.to_edges(scale[adjacency.col] * entries * of_target).to(weight.dtype)
