"""Self loops, as PyG adds them, and the symmetric normalisation of GCN (Kipf & Welling, 2017, equation 2).

PyG has three rules, by the format of the graph: the edge list keeps the weight of a loop that exists (the last of
several), a torch sparse matrix adds to it, a ``SparseTensor`` replaces it. Kept edges come first, then one loop a node.

Under ``torch.compile`` a loop cannot be dropped, for the number of edges would depend on the data. Dropped loops go to
one extra target after the last instead, whose row is cut off (:meth:`LoopedGraph.trim`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..functional import segment
from ..graph import Flow, TCGraph
from ..interop.as_graph import read_edges
from ..interop.edges import Loops
from .lookup import edge_weights, remembered


@dataclass(frozen=True, eq=False)
class LoopedGraph:
    """A graph with self loops, and where its edges came from.

    Attributes:
        graph: the structure; has one extra target where ``extra_target``.
        edge_index: ``[2, E']``: kept edges in their order, then loops.
        kept: ``[E' - L]`` caller's edge of each kept edge; ``None``: all of them.
        own_loop: ``[L]`` the last loop the caller had at each node; ``E`` where none.
        weight: ``[E]`` values of the caller's matrix, or ``None``.
        num_edges: the caller's ``E``.
        num_loops: ``L``.
        num_targets: targets without the extra one.
        rule: PyG's rule of the format.
        extra_target: see above.
    """

    graph: TCGraph
    edge_index: Tensor
    kept: Tensor | None
    own_loop: Tensor | None
    weight: Tensor | None
    num_edges: int
    num_loops: int
    num_targets: int
    rule: Loops
    extra_target: bool

    def edge_values(self, values: Tensor, loops: Tensor) -> Tensor:
        """``[E', ...]`` from the caller's ``[E, ...]`` values and the loops' ``[L, ...]``."""
        return torch.cat([values if self.kept is None else values.index_select(0, self.kept), loops])

    def trim(self, out: Tensor, dim: int = 0) -> Tensor:
        """Results without the extra target."""
        return out.narrow(dim, 0, self.num_targets) if self.extra_target else out

    def pad_targets(self, rows: Tensor) -> Tensor:
        """``[M, ...]`` target operands, one zero row longer where there is an extra target."""
        return pad(rows, (0, 0) * (rows.dim() - 1) + (0, 1)) if self.extra_target else rows


def looped_graph(adj: Any, size: tuple[int, int], flow: Flow, *, gcn: bool = False, add: bool = True) -> LoopedGraph:
    """``adj`` with one loop for each node that is both source and target.

    Args:
        adj: any format of :func:`torch_tcgnn.as_graph`.
        size: ``(num_sources, num_targets)``.
        flow: as in PyG.
        gcn: the rule of ``add_remaining_self_loops``; attention layers (``False``) always replace loops.
        add: ``False`` takes the edges as they are.
    """
    return remembered(adj, None, size, flow, ("loops", gcn, add), lambda: _build(adj, size, flow, gcn, add))


def _build(adj: Any, size: tuple[int, int], flow: Flow, gcn: bool, add: bool) -> LoopedGraph:
    edges = read_edges(adj, size, flow=flow)
    num_sources, num_targets = size
    compiling = torch.compiler.is_compiling()
    if not isinstance(adj, TCGraph):
        edges.check()
    edge_index = edges.edge_index.long()
    num_edges, num_loops = edge_index.shape[1], min(size) if add else 0
    extra, kept, own_loop = False, None, None
    if add and not (gcn and edges.loops == "sum"):
        is_loop = edge_index[0] == edge_index[1]
        if gcn and edges.loops == "keep":
            own_loop = _last_loops(edge_index[0], is_loop, num_loops)
        if compiling:
            extra = True
            edge_index = torch.stack([edge_index[0], edge_index[1].masked_fill(is_loop, num_targets)])
        else:
            kept = (~is_loop).nonzero().view(-1)
            edge_index = edge_index.index_select(1, kept)
    if add:
        loops = torch.arange(num_loops, device=edge_index.device)
        edge_index = torch.cat([edge_index, torch.stack([loops, loops])], dim=1)
    translated = isinstance(adj, TCGraph)
    if translated and not add:
        graph = adj
    else:
        reorder, path = (adj.reorder, adj.path) if translated else ("none", "auto")
        graph = TCGraph.from_edge_index(
            edge_index, (num_sources, num_targets + extra), reorder=reorder, path=path, validate=False
        )
    return LoopedGraph(
        graph, edge_index, kept, own_loop, edges.weight, num_edges, num_loops, num_targets, edges.loops, extra
    )


def _last_loops(node: Tensor, is_loop: Tensor, num_loops: int) -> Tensor:
    """``[num_loops]``: position of the last loop at each node, or the number of edges where there is none."""
    position = torch.arange(node.shape[0], device=node.device)
    node = torch.where(is_loop, node, num_loops)
    last = torch.full((num_loops + 1,), -1, device=node.device).scatter_reduce(0, node, position, "amax")[:num_loops]
    return torch.where(last < 0, node.shape[0], last)


def gcn_graph(
    adj: Any,
    weight: Tensor | None,
    num_nodes: int,
    flow: Flow,
    *,
    improved: bool,
    add_self_loops: bool,
    dtype: torch.dtype,
    name: str,
) -> tuple[LoopedGraph, Tensor]:
    """Structure and weights of ``D^-1/2 (A + I) D^-1/2``, degrees over targets; zero degrees give zero weights.

    The structure's edges are in storage order, and the weights with them: many calls read them.
    Weights are differentiable in ``weight``; otherwise they are computed once. As in PyG 2.8.1, ``improved`` (loops of
    weight 2) acts only where edges carry weights. Nothing is computed below float32.
    """
    size = (num_nodes, num_nodes)
    dtype = dtype if dtype == torch.float64 else torch.float32

    def build() -> tuple[LoopedGraph, Tensor]:
        looped = looped_graph(adj, size, flow, gcn=True, add=add_self_loops)
        given = edge_weights(weight, looped.num_edges, name, looped.edge_index.device)
        given = looped.weight if given is None else given
        values = _normalise(looped, given, 2.0 if improved else 1.0, dtype)
        graph = looped.graph
        return replace(looped, graph=graph.in_storage_order()), graph.adjacency.to_entries(values)

    return remembered(adj, weight, size, flow, ("gcn", improved, add_self_loops, dtype), build)


def _normalise(looped: LoopedGraph, weight: Tensor | None, fill: float, dtype: torch.dtype) -> Tensor:
    edge_index, num_loops = looped.edge_index, looped.num_loops
    if weight is None and (looped.rule == "keep" or fill == 1.0):
        full = torch.ones(edge_index.shape[1], dtype=dtype, device=edge_index.device)
    else:
        if weight is None:
            weight = torch.ones(looped.num_edges, dtype=dtype, device=edge_index.device)
        weight = weight.to(torch.promote_types(weight.dtype, dtype))
        loops = weight.new_full((num_loops,), fill)
        if looped.own_loop is not None:
            own = torch.cat([weight, weight.new_full((1,), fill)])
            loops = own.index_select(0, looped.own_loop)
        full = looped.edge_values(weight, loops)
    scale = segment(looped.graph, full).pow(-0.5)
    scale = scale.masked_fill(scale == float("inf"), 0.0)
    return scale.index_select(0, edge_index[0]) * full * scale.index_select(0, edge_index[1])


def loop_features(looped: LoopedGraph, edge_attr: Tensor, fill: float | Tensor | str, flow: Flow) -> Tensor:
    """``[E', D]`` edge features with those of the loops: a value, or a reduction over the edges into each node."""
    shape = (looped.num_loops, *edge_attr.shape[1:])
    if isinstance(fill, str):
        loops = _reduced(looped, edge_attr, fill, flow)
    elif isinstance(fill, Tensor):
        loops = fill.to(edge_attr.device, edge_attr.dtype)
        loops = (loops if loops.dim() == edge_attr.dim() else loops.unsqueeze(0)).expand(shape)
    else:
        loops = edge_attr.new_full(shape, fill)
    return looped.edge_values(edge_attr, loops)


def _reduced(looped: LoopedGraph, edge_attr: Tensor, fill: str, flow: Flow) -> Tensor:
    reduces = {"add": "sum", "sum": "sum", "mean": "mean", "min": "amin", "max": "amax", "mul": "prod"}
    source, target = looped.edge_index[:, : looped.edge_index.shape[1] - looped.num_loops]
    node = target
    if flow == "target_to_source":  # PyG reduces over edge_index[1] in either flow
        node = source
        if looped.extra_target:
            node = torch.where(target == looped.num_targets, looped.graph.num_cols, source)
    values = edge_attr if looped.kept is None else edge_attr.index_select(0, looped.kept)
    index = node.view(-1, *[1] * (values.dim() - 1)).expand_as(values)
    shape = (max(looped.graph.num_rows, looped.graph.num_cols + 1), *values.shape[1:])
    out = values.new_ones(shape) if fill == "mul" else values.new_zeros(shape)
    out = out.scatter_reduce(0, index, values, reduces[fill], include_self=fill == "mul")
    return out[: looped.num_loops]
