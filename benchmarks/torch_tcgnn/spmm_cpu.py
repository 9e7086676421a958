"""SpMM on the CPU, forward alone and forward with the gradient of ``x``.

Work: 2·E·F operations (E·F without weights); bytes of the int32 CSR, the weights, ``x`` and the output, each once.
"""

from functools import partial

import torch_tcgnn as tcg
from torch import Tensor

from benchmarks.case import Case
from benchmarks.torch_tcgnn import bounds, oracle
from benchmarks.torch_tcgnn.cpu_peers import SPMM, SPMM_BACKWARD, Multiply, backward, forward
from benchmarks.torch_tcgnn.tasks import QUICK, REAL, Task, make_task

DIMS = (16, 64, 128)
# Gradients are the slowest cases: besides width 64, two graphs of each kind are enough
BACKWARD = {False: (*QUICK, "amazon_computers", "PROTEINS"), True: (*QUICK, "amazon_computers", "musae_github")}

__all__ = ["cases"]


def _ours(task: Task) -> Multiply:
    graph = tcg.TCGraph.from_edge_index(task.edge_index, num_nodes=task.num_nodes)
    weight = task.weight

    def multiply(x: Tensor) -> Tensor:
        return tcg.spmm(graph, x, weight)

    return multiply


def _flops(passes: int, task: Task) -> float:
    return passes * (1 if task.weight is None else 2) * task.num_edges * task.x.shape[1]


def _bytes(passes: int, task: Task) -> float:
    weights = 0 if task.weight is None else 4 * task.num_edges
    return passes * (task.index_bytes + weights + 2 * 4 * task.x.numel())


def _case(graph: str, dim: int, *, weighted: bool, gradient: bool) -> Case:
    kind = "spmm-backward" if gradient else "spmm"
    name = f"{kind}/{graph}/d{dim}/{'weighted' if weighted else 'unweighted'}/fp32"
    passes = 2 if gradient else 1
    return Case(
        name=name,
        tags=(kind, "cpu", f"d{dim}", *(["quick"] if graph in QUICK else ["real"])),
        make=partial(make_task, graph, dim, weighted=weighted),
        ours=(backward if gradient else forward)(_ours),
        peers=SPMM_BACKWARD if gradient else SPMM,
        reference=oracle.spmm_backward if gradient else oracle.spmm,
        tolerance=bounds.spmm_backward if gradient else bounds.spmm,
        flops=partial(_flops, passes),
        bytes=partial(_bytes, passes),
        bound="memory",
        devices=("cpu",),
    )


def cases() -> list[Case]:
    """Every graph at width 64; other widths, and width 64 with weights, everywhere forward and on a few backward."""
    kinds = [(64, False), (64, True), *((dim, False) for dim in DIMS if dim != 64)]
    return [
        _case(graph, dim, weighted=weighted, gradient=gradient)
        for gradient in (False, True)
        for graph in (*QUICK, *REAL)
        for dim, weighted in kinds
        if not gradient or (dim, weighted) == (64, False) or graph in BACKWARD[weighted]
    ]
