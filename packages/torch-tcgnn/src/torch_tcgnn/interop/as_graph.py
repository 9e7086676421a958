"""`as_graph`: any graph format a layer may be handed, translated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..graph import FLOWS, PATHS, Flow, Path, TCGraph
from ..graph_arguments import check_choice, check_sizes
from ..reorder import REORDERS
from .dgl import is_dgl, read_dgl
from .edges import Edges
from .pyg import read_edge_index
from .scipy import is_scipy, read_scipy
from .torch_layouts import LAYOUTS, read_torch_sparse_layout
from .torch_sparse import is_sparse_tensor, read_sparse_tensor

ACCEPTED = (
    "an integer tensor [2, E], PyG's EdgeIndex, a torch sparse tensor (COO, CSR, CSC), torch_sparse.SparseTensor, "
    "a SciPy sparse matrix, a DGL graph or a TCGraph"
)


def as_graph(
    adj: Any,
    num_nodes: int | tuple[int, int] | None = None,
    weight: Tensor | None = None,
    *,
    flow: Flow = "source_to_target",
    reorder: str = "none",
    path: Path = "auto",
    validate: bool = True,
) -> TCGraph:
    """Translate any supported graph format.

    Args:
        adj: an edge list (``[2, E]`` integer tensor, PyG ``EdgeIndex``: sources, then targets); a matrix whose rows are
            targets and columns sources (torch sparse COO/CSR/CSC, ``torch_sparse.SparseTensor``, SciPy; values become
            edge weights, all-one values none); a DGL graph; or a ``TCGraph``, returned as it is.
        num_nodes: node count or ``(num_sources, num_targets)``; formats that know their size are checked against it.
        weight: ``[E]`` or ``[E, H]`` edge weights in the order of ``adj``'s edges, in place of its own.
        flow: as in PyG; matrices take only ``"source_to_target"``.
        reorder: see :meth:`TCGraph.from_edge_index`; a ``TCGraph`` keeps its own.
        path: likewise.
        validate: check ids (one synchronisation with the device).

    Raises:
        TypeError: an unknown format.
        ValueError: ids, sizes or weights that do not fit, an unknown ``flow``, ``reorder`` or ``path``, or a reversed
            ``flow`` of a matrix.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> adj_t = torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse_csr()
        >>> g = tcg.as_graph(adj_t)
        >>> g, g.weight
        (TCGraph(2 targets, 2 sources, 1 edges, weighted, cpu), tensor([2.]))

    Reference:
        PyG's convention: ``edge_index = [source, target]``, ``adj_t[target, source]``.
    """
    check_choice("flow", flow, FLOWS)
    check_choice("path", path, PATHS)
    check_choice("reorder", reorder, REORDERS)
    if isinstance(adj, TCGraph):
        check_graph_size(adj, num_nodes)
        return adj if weight is None else adj.with_weight(weight)
    edges = read_edges(adj, num_nodes, flow=flow)
    if weight is not None:
        edges = Edges(edges.edge_index, weight, edges.num_sources, edges.num_targets, edges.loops)
    return edges.graph(reorder=reorder, path=path, validate=validate)


def read_edges(adj: Any, num_nodes: int | tuple[int, int] | None = None, *, flow: Flow = "source_to_target") -> Edges:
    """Sources, targets, values and sizes of any supported format.

    Args:
        adj: as for :func:`as_graph`.
        num_nodes: as for :func:`as_graph`.
        flow: as for :func:`as_graph`.

    Raises:
        TypeError: an unknown format.
        ValueError: another size than ``num_nodes`` says, or a reversed ``flow`` of a matrix.

    Example:
        >>> import torch
        >>> read_edges(torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse_csr()).edge_index.tolist()
        [[1], [0]]

    Reference:
        PyG's convention: ``edge_index = [source, target]``, ``adj_t[target, source]``.
    """
    if isinstance(adj, TCGraph):
        check_graph_size(adj, num_nodes)
        return Edges(adj.to_edge_index(), adj.weight, adj.num_cols, adj.num_rows)
    if isinstance(adj, Tensor) and adj.layout == torch.strided:
        return read_edge_index(adj, num_nodes, flow)
    if is_dgl(adj):
        return read_dgl(adj, num_nodes)
    if flow == "target_to_source":
        raise ValueError(f"flow 'target_to_source' needs an edge list, got {type(adj).__name__}: give its transpose")
    if isinstance(adj, Tensor) and adj.layout in LAYOUTS:
        return read_torch_sparse_layout(adj, num_nodes)
    if is_sparse_tensor(adj):
        return read_sparse_tensor(adj, num_nodes)
    if is_scipy(adj):
        return read_scipy(adj, num_nodes)
    raise TypeError(f"edge_index must be {ACCEPTED}; got {type(adj).__name__}")


def check_graph_size(graph: TCGraph, num_nodes: int | tuple[int, int] | None) -> None:
    """Raise where a graph has another size than ``num_nodes`` says."""
    if num_nodes is None:
        return
    said = check_sizes("num_nodes", num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes))
    if said[0] != graph.num_cols or said[1] != graph.num_rows:
        raise ValueError(f"{graph!r} does not fit num_nodes={num_nodes} (sources, targets)")


def from_sparse(adj_t: Tensor, *, reorder: str = "none", path: Path = "auto") -> TCGraph:
    """Translate a torch sparse matrix.

    Args:
        adj_t: ``[num_targets, num_sources]`` COO, CSR or CSC; values become edge weights, all-one values none.
        reorder: see :meth:`TCGraph.from_edge_index`.
        path: likewise.

    Raises:
        ValueError: another layout, or not a matrix.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> tcg.from_sparse(torch.eye(3).to_sparse())
        TCGraph(3 targets, 3 sources, 3 edges, cpu)

    Reference:
        PyG's convention: ``adj_t[target, source]``.
    """
    return read_torch_sparse_layout(adj_t, None).graph(reorder=reorder, path=path)


def from_torch_sparse(adj_t: Any, *, reorder: str = "none", path: Path = "auto") -> TCGraph:
    """Translate a ``torch_sparse.SparseTensor``.

    Args:
        adj_t: ``[num_targets, num_sources]``; values become edge weights, all-one values none.
        reorder: see :meth:`TCGraph.from_edge_index`.
        path: likewise.

    Raises:
        TypeError: something else.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> tcg.from_torch_sparse(torch.eye(3))
        Traceback (most recent call last):
        TypeError: adj_t must be a torch_sparse.SparseTensor (pip install 'torch-tcgnn[pyg-sparse]'), got Tensor

    Reference:
        PyG's convention: ``adj_t[target, source]``.
    """
    if not is_sparse_tensor(adj_t):
        wanted = "a torch_sparse.SparseTensor (pip install 'torch-tcgnn[pyg-sparse]')"
        raise TypeError(f"adj_t must be {wanted}, got {type(adj_t).__name__}")
    return read_sparse_tensor(adj_t, None).graph(reorder=reorder, path=path)


def from_scipy(matrix: Any, *, reorder: str = "none", path: Path = "auto") -> TCGraph:
    """Translate a SciPy sparse matrix or array, so that ``spmm(from_scipy(m), x)`` is ``m @ x``.

    PyG's ``from_scipy_sparse_matrix`` reads rows as sources instead; give ``m.T`` for the graph it means.

    Args:
        matrix: ``[num_targets, num_sources]``; values become edge weights, all-one values none.
        reorder: see :meth:`TCGraph.from_edge_index`.
        path: likewise.

    Raises:
        TypeError: something else.

    Example:
        >>> import numpy, scipy.sparse, torch_tcgnn as tcg
        >>> tcg.from_scipy(scipy.sparse.csr_array(numpy.eye(3)))
        TCGraph(3 targets, 3 sources, 3 edges, cpu)

    Reference:
        The matrix product of SciPy.
    """
    if not is_scipy(matrix):
        raise TypeError(f"matrix must be a SciPy sparse matrix or array, got {type(matrix).__name__}")
    return read_scipy(matrix, None).graph(reorder=reorder, path=path)


def from_dgl(graph: Any, *, reorder: str = "none", path: Path = "auto") -> TCGraph:
    """Translate a DGL graph; edges in edge-id order.

    Args:
        graph: one edge type: slice others, ``g[etype]``.
        reorder: see :meth:`TCGraph.from_edge_index`.
        path: likewise.

    Raises:
        TypeError: something else.
        ValueError: several edge types.

    Example:
        >>> import torch_tcgnn as tcg
        >>> tcg.from_dgl("graph")
        Traceback (most recent call last):
        TypeError: graph must be a DGL graph, got str

    Reference:
        DGL's ``edges(form="uv", order="eid")``.
    """
    if not is_dgl(graph):
        raise TypeError(f"graph must be a DGL graph, got {type(graph).__name__}")
    return read_dgl(graph, None).graph(reorder=reorder, path=path)
