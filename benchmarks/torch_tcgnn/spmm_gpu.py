"""SpMM on a GPU: the kernel that the package chooses, and its tensor-core kernels by themselves.

Kinds of case: ``spmm`` (``path="auto"``, float32), ``spmm-tf32``, ``spmm-fp16`` and ``spmm-weighted``; ``spmm-tc`` and
``spmm-tc-tf32`` force ``path="tc"``. Ours sums in float32 in all of them. Work: E·F operations (twice that with
weights); bytes of the int32 CSR, the weights, ``x`` and the output, each once: what memory must move, far below what
rows gathered edge by edge take from the caches. `facts_gpu` reports the gathered bytes a second.
"""

from collections.abc import Mapping
from functools import partial

import torch
import torch_tcgnn as tcg

from benchmarks.case import Case, Math, Run, Runner, Tolerance
from benchmarks.torch_tcgnn import bounds, oracle
from benchmarks.torch_tcgnn.gpu_peers import SPMM, SPMM_FURTHER
from benchmarks.torch_tcgnn.gpu_tasks import GRAPHS, QUICK, make_task, tags_of
from benchmarks.torch_tcgnn.tasks import Task

DIMS = (16, 32, 64, 128, 256)
TAILS = (41, 121)
TAIL_GRAPH = "arxiv-like"
QUICK_DIMS = (32, 128)
DTYPE = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16}
KIND = {
    ("auto", "fp32"): "spmm",
    ("auto", "tf32"): "spmm-tf32",
    ("auto", "fp16"): "spmm-fp16",
    ("tc", "fp32"): "spmm-tc",
    ("tc", "tf32"): "spmm-tc-tf32",
}
# cuSPARSE is asked for float32 sums, but on float16 matrices its errors are those of partial sums rounded to float16
PEER_TOLERANCE: dict[Math, dict[str, Tolerance]] = {"fp16": dict.fromkeys(SPMM, bounds.spmm_in_fp16)}
NOTE = {
    "tf32": "the peers compute in float32",
    "fp16": "ours sums in float32 and is held to one rounding of the output; cuSPARSE, asked for float32 sums, errs as "
    "sums rounded to float16 on the way do, and is held to the bound of such sums: compare the errors",
}

__all__ = ["cases", "translate"]


def translate(task: Task, path: str = "auto") -> tcg.TCGraph:
    """The task's graph, with all that the kernels of one path need of it, as a second call finds it."""
    graph = tcg.TCGraph.from_edge_index(task.edge_index, num_nodes=task.num_nodes, path=path)
    graph.prepared(task.x.dtype)
    return graph


def _ours(path: str, math: Math, task: Task) -> Run:
    graph = translate(task, path)
    precision = "tf32" if math == "tf32" else "ieee"
    return lambda: tcg.spmm(graph, task.x, task.weight, precision=precision)


def _kernel(path: str, task: Task) -> str:
    return tcg.explain(translate(task, path), task.x, task.weight).kernel


def _flops(task: Task) -> float:
    return (1 if task.weight is None else 2) * task.num_edges * task.x.shape[1]


def _bytes(task: Task) -> float:
    weights = 0 if task.weight is None else task.num_edges
    return task.index_bytes + task.x.element_size() * (weights + 2 * task.x.numel())


def _case(graph: str, dim: int, math: Math = "fp32", *, path: str = "auto", weighted: bool = False) -> Case:
    kind = "spmm-weighted" if weighted else KIND[path, math]
    plain = kind == "spmm"
    quick = graph in QUICK and dim in QUICK_DIMS
    peers: Mapping[str, Runner] = SPMM | SPMM_FURTHER if plain and dim == 128 else SPMM
    return Case(
        name=f"{kind}/{graph}/d{dim}/{'weighted' if weighted else 'unweighted'}/{math}",
        tags=tags_of(graph, kind, math, f"d{dim}", f"{kind}-d{dim}", *(["quick"] if quick else [])),
        make=partial(make_task, graph, dim, dtype=DTYPE[math], weighted=weighted),
        ours=partial(_ours, path, math),
        peers=peers,
        reference=oracle.spmm,
        tolerance=partial(bounds.spmm, math=math),
        peer_tolerance=PEER_TOLERANCE.get(math, {}),
        flops=_flops,
        bytes=_bytes,
        math=math,
        bound="memory",
        kernel=partial(_kernel, path),
        devices=("cuda",),
        note=NOTE.get(math, ""),
    )


def _cases_of(graph: str) -> list[Case]:
    return [
        *(_case(graph, dim) for dim in DIMS),
        *(_case(graph, dim) for dim in TAILS if graph == TAIL_GRAPH),
        _case(graph, 64, weighted=True),
        _case(graph, 128, "tf32"),
        *(_case(graph, dim, "fp16") for dim in (32, 128)),
        *(_case(graph, 128, math, path="tc") for math in ("fp32", "tf32")),
    ]


def cases() -> list[Case]:
    """Every graph: all widths in float32, the other kinds at the widths that matter."""
    return [case for graph in GRAPHS for case in _cases_of(graph)]
