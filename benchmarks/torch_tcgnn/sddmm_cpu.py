"""SDDMM on the CPU: a dot product an edge.

Work: 2·E·F operations; bytes of the int32 CSR, both operands and the result, each once.
"""

from functools import partial

import torch_tcgnn as tcg

from benchmarks.case import Case, Run
from benchmarks.torch_tcgnn import bounds, oracle
from benchmarks.torch_tcgnn.cpu_peers import SDDMM
from benchmarks.torch_tcgnn.tasks import QUICK, REAL, Task, make_task

DIMS = {32: (*QUICK, *REAL), 128: (*QUICK, "PROTEINS")}  # few of the slow ones

__all__ = ["cases"]


def _ours(task: Task) -> Run:
    graph = tcg.TCGraph.from_edge_index(task.edge_index, num_nodes=task.num_nodes)
    return lambda: tcg.sddmm(graph, task.x, task.y)


def _case(graph: str, dim: int) -> Case:
    return Case(
        name=f"sddmm/{graph}/d{dim}/fp32",
        tags=("sddmm", "cpu", f"d{dim}", *(["quick"] if graph in QUICK else ["real"])),
        make=partial(make_task, graph, dim),
        ours=_ours,
        peers=SDDMM,
        reference=oracle.sddmm,
        tolerance=bounds.sddmm,
        flops=lambda task: 2 * task.num_edges * task.x.shape[1],
        bytes=lambda task: task.index_bytes + 4 * (2 * task.x.numel() + task.num_edges),
        bound="memory",
        devices=("cpu",),
    )


def cases() -> list[Case]:
    """Every graph, and two of them at a larger width."""
    return [_case(graph, dim) for dim, graphs in DIMS.items() for graph in graphs]
