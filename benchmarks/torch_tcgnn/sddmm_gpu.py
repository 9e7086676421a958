"""SDDMM on a GPU: a dot product an edge, in float32.

Work: 2·E·F operations; bytes of the int32 CSR, both operands and the result, each once.
"""

from functools import partial

import torch_tcgnn as tcg
from torch_tcgnn.kernels.choose import explain_sddmm

from benchmarks.case import Case, Run
from benchmarks.torch_tcgnn import bounds, oracle
from benchmarks.torch_tcgnn.gpu_peers import SDDMM
from benchmarks.torch_tcgnn.gpu_tasks import GRAPHS, QUICK, make_task, tags_of
from benchmarks.torch_tcgnn.spmm_gpu import translate
from benchmarks.torch_tcgnn.tasks import Task

DIMS = (32, 128)

__all__ = ["cases"]


def _ours(task: Task) -> Run:
    graph = translate(task)
    return lambda: tcg.sddmm(graph, task.x, task.y)


def _kernel(task: Task) -> str:
    return explain_sddmm(translate(task).prepared(task.x.dtype), task.x, task.y).kernel


def _case(graph: str, dim: int) -> Case:
    quick = graph in QUICK and dim == 32
    return Case(
        name=f"sddmm/{graph}/d{dim}/fp32",
        tags=tags_of(graph, "sddmm", "fp32", f"d{dim}", f"sddmm-d{dim}", *(["quick"] if quick else [])),
        make=partial(make_task, graph, dim),
        ours=_ours,
        peers=SDDMM,
        reference=oracle.sddmm,
        tolerance=bounds.sddmm,
        flops=lambda task: 2 * task.num_edges * task.x.shape[1],
        bytes=lambda task: task.index_bytes + 4 * (2 * task.x.numel() + task.num_edges),
        bound="memory",
        kernel=_kernel,
        devices=("cuda",),
    )


def cases() -> list[Case]:
    """Every graph at two widths."""
    return [_case(graph, dim) for graph in GRAPHS for dim in DIMS]
