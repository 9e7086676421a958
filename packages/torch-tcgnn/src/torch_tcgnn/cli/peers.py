"""The contenders of ``bench``: each gets a graph and features, and returns the call that sums neighbours' features.

Formats are converted before the clock starts, as a user would keep them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from ..data import GraphData

Call = Callable[[], Tensor]


class Skip(Exception):
    """A contender that does not take part, and why."""


def torch_csr(graph: GraphData, x: Tensor, index: torch.dtype) -> Call:
    """``torch.sparse`` compressed rows with the given index type (MKL on a CPU, cuSPARSE on a GPU)."""
    matrix = _csr(graph, x.dtype, index)
    return lambda: matrix @ x


def gather(graph: GraphData, x: Tensor) -> Call:
    """Gather a row for every edge, then ``index_add_``: message passing written by hand."""
    _check_room(graph, x)
    source, target = graph.edge_index
    return lambda: x.new_zeros(graph.num_nodes, x.shape[1]).index_add_(0, target, x.index_select(0, source))


def pyg(graph: GraphData, x: Tensor) -> Call:
    """PyG's message passing on ``edge_index``, with the scatter that is installed."""
    try:
        from torch_geometric.nn import SimpleConv
    except ImportError as error:
        raise ImportError("PyG is not installed: pip install 'torch-tcgnn[pyg]'") from error
    _check_room(graph, x)
    layer = SimpleConv(aggr="sum").to(x.device)
    return lambda: layer(x, graph.edge_index)


def reference(graph: GraphData, x: Tensor) -> tuple[Tensor, Tensor]:
    """The sums in float64, and the sums of magnitudes that errors are measured by."""
    matrix = _csr(graph, torch.float64, torch.int64)
    return matrix @ x.double(), matrix @ x.double().abs()


def _csr(graph: GraphData, dtype: torch.dtype, index: torch.dtype) -> Tensor:
    rowptr, col = graph.csr()
    ones = torch.ones(graph.num_edges, dtype=dtype, device=col.device)
    size = (graph.num_nodes, graph.num_nodes)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse (CSR tensor support is in beta|invariant checks are implicitly)")
        return torch.sparse_csr_tensor(rowptr.to(index), col.to(index), ones, size, check_invariants=False)


def _check_room(graph: GraphData, x: Tensor) -> None:
    """Raise where one row an edge would not fit in half of the free memory."""
    needed = 2 * graph.num_edges * x.shape[1] * x.element_size()
    free = _free_bytes(x.device)
    if free is not None and needed > free:
        raise Skip(f"a row an edge needs {needed / 2**31:.1f} GiB, {free / 2**30:.1f} GiB are free")


def _free_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


PEERS: dict[str, Callable[[GraphData, Tensor], Call]] = {
    "torch-csr-int32": lambda graph, x: torch_csr(graph, x, torch.int32),
    "torch-csr-int64": lambda graph, x: torch_csr(graph, x, torch.int64),
    "gather-index_add": gather,
    "pyg": pyg,
}
"""Contenders by name."""
