"""What else a user of PyTorch could call on a CPU for the same sums, each as one runner.

Formats are prepared outside the clock, as a user would keep them between calls. A peer that is not installed raises
ImportError, which the driver records.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from benchmarks.case import Run, Runner, Skip
from benchmarks.torch_tcgnn.tasks import Task

Multiply = Callable[[Tensor], Tensor]

__all__ = ["SDDMM", "SPMM", "SPMM_BACKWARD", "backward", "forward"]


def forward(prepare: Callable[[Task], Multiply]) -> Runner:
    """A runner of ``A · x``."""

    def runner(task: Task) -> Run:
        multiply = prepare(task)
        return lambda: multiply(task.x)

    return runner


def backward(prepare: Callable[[Task], Multiply]) -> Runner:
    """A runner of ``A · x`` and the gradient of ``x``, by autograd."""

    def runner(task: Task) -> Run:
        multiply = prepare(task)
        x = task.x.clone().requires_grad_()

        def run() -> tuple[Tensor, Tensor]:
            out = multiply(x)
            return out, torch.autograd.grad(out, x, task.grad)[0]

        return run

    return runner


def _values(task: Task) -> Tensor:
    return torch.ones(task.num_edges, device=task.x.device) if task.weight is None else task.weight


def torch_csr(index: torch.dtype) -> Callable[[Task], Multiply]:
    """``torch.sparse`` CSR times dense; MKL takes int32 indices as they are and int64 after a conversion."""

    def prepare(task: Task) -> Multiply:
        size = (task.num_nodes, task.num_nodes)
        parts = (task.rowptr.to(index), task.col.to(index), _values(task))
        matrix = torch.sparse_csr_tensor(*parts, size=size, check_invariants=False)
        return lambda x: matrix @ x

    return prepare


def bag(task: Task) -> Multiply:
    """``embedding_bag``: a row of the product is a weighted sum over a bag of rows of ``x``."""
    col, rowptr = task.col.contiguous(), task.rowptr
    weight = task.weight
    return lambda x: embedding_bag(col, x, rowptr, mode="sum", per_sample_weights=weight, include_last_offset=True)


def scipy_csr(task: Task) -> Multiply:
    """SciPy's CSR (single-threaded, int32 indices)."""
    from scipy.sparse import csr_array

    size = (task.num_nodes, task.num_nodes)
    parts = (_values(task).numpy(), task.col.int().numpy(), task.rowptr.int().numpy())
    matrix = csr_array(parts, shape=size)
    return lambda x: torch.from_numpy(matrix @ x.numpy())


def pyg_message_passing(task: Task) -> Multiply:
    """PyG's message passing over a plain ``edge_index``: gather, then scatter."""
    from torch_geometric.nn import SimpleConv

    layer = SimpleConv(aggr="sum")
    return lambda x: layer(x, task.edge_index, task.weight)


def pyg_edge_index_class(task: Task) -> Multiply:
    """PyG's ``EdgeIndex`` sorted by target, its compressed forms filled beforehand."""
    from torch_geometric import EdgeIndex

    size = (task.num_nodes, task.num_nodes)
    edges = EdgeIndex(task.edge_index, sparse_size=size, sort_order="col").fill_cache_()
    return lambda x: edges.matmul(x, task.weight, transpose=True)


def sampled_addmm(task: Task) -> Run:
    """``torch.sparse.sampled_addmm`` on the CSR pattern."""
    size = (task.num_nodes, task.num_nodes)
    zeros = torch.zeros(task.num_edges, device=task.x.device)
    pattern = torch.sparse_csr_tensor(task.rowptr.int(), task.col.int(), zeros, size=size, check_invariants=False)
    return lambda: torch.sparse.sampled_addmm(pattern, task.x, task.y.t(), beta=0.0).values()


def gather_multiply(task: Task) -> Run:
    """Gather both operands, multiply, sum: what an eager message function does."""
    source, target = task.edge_index
    return lambda: (task.x[target] * task.y[source]).sum(-1)


_PRODUCTS = {
    "torch-csr-int64": torch_csr(torch.int64),
    "torch-csr-int32": torch_csr(torch.int32),
    "embedding-bag": bag,
    "pyg-edge-index": pyg_message_passing,
    "pyg-edge-index-class": pyg_edge_index_class,
}
SPMM: dict[str, Runner | Skip] = {name: forward(peer) for name, peer in (_PRODUCTS | {"scipy": scipy_csr}).items()}
SPMM_BACKWARD: dict[str, Runner | Skip] = {name: backward(peer) for name, peer in _PRODUCTS.items()}
SPMM_BACKWARD["scipy"] = Skip("SciPy computes no gradients")
SDDMM: dict[str, Runner | Skip] = {"torch-sampled-addmm": sampled_addmm, "gather-multiply": gather_multiply}
