"""What else a user of PyTorch could call on a GPU for the same sums, each as one runner.

Formats are prepared outside the clock, as a user would keep them between calls: a CSR with values of the dtype of
``x`` (cuSPARSE needs values, ones where the graph has no weights), a sorted ``edge_index``.
"""

import torch
from torch import Tensor

from benchmarks.case import Run, Runner
from benchmarks.torch_tcgnn import cusparse
from benchmarks.torch_tcgnn.cpu_peers import pyg_message_passing, sampled_addmm
from benchmarks.torch_tcgnn.tasks import Task

__all__ = ["SDDMM", "SPMM", "SPMM_FURTHER"]


def _values(task: Task) -> Tensor:
    return task.x.new_ones(task.num_edges) if task.weight is None else task.weight


def torch_csr(index: torch.dtype) -> Runner:
    """``torch.sparse.mm`` on a CSR: cuSPARSE, by the algorithm that torch picks."""

    def runner(task: Task) -> Run:
        parts = (task.rowptr.to(index), task.col.to(index), _values(task))
        size = (task.num_nodes, task.num_nodes)
        matrix = torch.sparse_csr_tensor(*parts, size=size, check_invariants=False)
        return lambda: torch.sparse.mm(matrix, task.x)

    return runner


def tuned(task: Task) -> Run:
    """cuSPARSE after its preprocessing, by the fastest of its algorithms."""
    return cusparse.fastest(task.rowptr.int(), task.col.int(), _values(task), task.x)


def gather_index_add(task: Task) -> Run:
    """A row an edge, then ``index_add_``: message passing written by hand."""
    source, target = task.edge_index
    weight = None if task.weight is None else task.weight.unsqueeze(1)

    def run() -> Tensor:
        message = task.x[source] if weight is None else task.x[source] * weight
        return torch.zeros_like(task.x).index_add_(0, target, message)

    return run


def pyg_edge_index(task: Task) -> Run:
    """PyG's message passing over a plain ``edge_index``."""
    multiply = pyg_message_passing(task)
    return lambda: multiply(task.x)


SPMM: dict[str, Runner] = {"cusparse": torch_csr(torch.int32), "cusparse-tuned": tuned}
SPMM_FURTHER: dict[str, Runner] = {
    "cusparse-int64": torch_csr(torch.int64),
    "gather-index-add": gather_index_add,
    "pyg-edge-index": pyg_edge_index,
}
SDDMM: dict[str, Runner] = {"sampled-addmm": sampled_addmm}
