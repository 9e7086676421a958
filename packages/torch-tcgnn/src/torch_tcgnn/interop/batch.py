"""Many graphs as one block-diagonal graph, without sorting anything again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..adjacency import INT32_LIMIT, Adjacency
from ..graph import TCGraph


def from_batch(graphs: Sequence[TCGraph]) -> TCGraph:
    """Put graphs side by side: node and edge numbers of graph ``k`` follow those of graph ``k - 1``.

    Operators on the result give each graph's own result. On a CPU sums (``spmm``, ``segment``, ``edge_softmax``) agree
    bit for bit, attention and ``sddmm`` to float32 rounding; on a GPU, where the whole graph decides how rows are cut
    and which columns share a block, everything does to rounding.

    Args:
        graphs: at least one, on one device; all weighted or none.

    Raises:
        TypeError: something else than graphs.
        ValueError: no graphs, several devices, or weights in some graphs only.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
        >>> tcg.from_batch([g, g]).to_edge_index()
        tensor([[0, 1, 2, 3],
                [1, 0, 3, 2]])
    """
    if isinstance(graphs, (TCGraph, str)) or not isinstance(graphs, Iterable):
        raise TypeError(f"graphs must be a sequence of TCGraph, got {type(graphs).__name__}")
    graphs = list(graphs)
    for place, g in enumerate(graphs):
        if not isinstance(g, TCGraph):
            raise TypeError(f"graphs must hold TCGraph, got {type(g).__name__} at place {place}")
    if not graphs:
        raise ValueError("graphs must hold at least one TCGraph, got none")
    devices = {str(g.device) for g in graphs}
    if len(devices) > 1:
        raise ValueError(f"graphs must lie on one device, got {', '.join(sorted(devices))}")
    weighted = [g.weight is not None for g in graphs]
    if any(weighted) != all(weighted):
        raise ValueError(f"graphs must all be weighted or none, got weights in {sum(weighted)} of {len(graphs)}")
    parts = [g.adjacency for g in graphs]
    num_edges = sum(a.num_edges for a in parts)
    pointer_dtype = torch.int32 if num_edges < INT32_LIMIT else torch.int64
    rowptr, cols, edges = [torch.zeros(1, dtype=pointer_dtype, device=graphs[0].device)], [], []
    first_edge = first_col = 0
    ordered = all(a.edge.numel() == 0 for a in parts)
    for g, a in zip(graphs, parts):
        rowptr.append(a.rowptr[1:].to(pointer_dtype) + first_edge)
        cols.append(a.col + first_col)
        if not ordered:
            edges.append(_edge_numbers(a).to(pointer_dtype) + first_edge)
        first_edge, first_col = first_edge + a.num_edges, first_col + g.num_cols
    if first_col >= INT32_LIMIT:
        raise ValueError(f"graphs must have fewer than 2**31 sources together, got {first_col}")
    edge = torch.cat(edges) if edges else torch.empty(0, dtype=pointer_dtype, device=graphs[0].device)
    adjacency = Adjacency(torch.cat(rowptr), torch.cat(cols), edge)
    weight = torch.cat([g.weight for g in graphs if g.weight is not None]) if all(weighted) else None
    return TCGraph(adjacency, first_col, weight, graphs[0].path, graphs[0].reorder)


def _edge_numbers(adjacency: Adjacency) -> Tensor:
    if adjacency.edge.numel():
        return adjacency.edge
    return torch.arange(adjacency.num_edges, device=adjacency.col.device)
