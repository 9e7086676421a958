"""What is measured without a race: how long a graph takes to translate, how large it is, what a call costs.

Targets are those of the package's design: translation on two CPU cores within 0.35 s a million edges, and structures of
at most 1.3 times a CSR with int32 indices and float32 values.
"""

import time
from functools import partial
from statistics import median

import torch
import torch_tcgnn as tcg
from torch.nn.functional import embedding_bag
from torch_tcgnn import data

from benchmarks.case import Fact
from benchmarks.clock import CpuClock, calls_per_sample

REPEATS = 5

__all__ = ["facts"]


def _edges(graph: str, seed: int) -> data.GraphData:
    return data.load(graph) if graph in data.NAMES else data.generate(graph, seed=seed)


def _build(graph: str, blocks: bool, device: torch.device, seed: int) -> float:
    """Seconds a million edges, for edges in random order."""
    loaded = _edges(graph, seed)
    order = torch.randperm(loaded.num_edges, generator=torch.Generator().manual_seed(seed))
    edge_index = loaded.edge_index[:, order].contiguous().to(device)
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        translated = tcg.TCGraph.from_edge_index(edge_index, num_nodes=loaded.num_nodes)
        if blocks:
            _ = translated.blocks
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return median(seconds) / loaded.num_edges * 1e6


def _bytes(graph: str, device: torch.device, seed: int) -> float:
    """Bytes that a graph in use holds over the bytes of a CSR with int32 indices and float32 values."""
    loaded = _edges(graph, seed)
    translated = tcg.TCGraph.from_edge_index(loaded.edge_index.to(device), num_nodes=loaded.num_nodes)
    held = translated.prepared(torch.float32).tensors()
    csr = 4 * (loaded.num_nodes + 1) + 8 * loaded.num_edges
    return sum(tensor.numel() * tensor.element_size() for tensor in held) / csr


def _overhead(device: torch.device, seed: int) -> float:
    """Microseconds that `spmm` takes longer than the kernel that it calls, on a graph of four edges."""
    edge_index = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    graph = tcg.TCGraph.from_edge_index(edge_index, num_nodes=4)
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))
    rowptr, col, _ = graph.csr()
    clock = CpuClock()

    def bare() -> torch.Tensor:
        return embedding_bag(col, x, rowptr, mode="sum", include_last_offset=True)

    def ours() -> torch.Tensor:
        return tcg.spmm(graph, x)

    calls = calls_per_sample(clock, ours)
    pairs = [(clock.warm(ours, calls), clock.warm(bare, calls)) for _ in range(30)]
    return 1e3 * (median(pair[0] for pair in pairs) - median(pair[1] for pair in pairs))


def facts() -> list[Fact]:
    """All facts of the package."""
    builds = [
        Fact(
            name=f"build/{graph}/{'blocks' if blocks else 'csr'}",
            measure=partial(_build, graph if graph in data.NAMES else graph.removesuffix("-like"), blocks),
            unit="s/Medge",
            target="<= 0.35",
            tags=("build", "cpu"),
            devices=("cpu",),
        )
        for graph in ("amazon_computers", "artist-like")
        for blocks in (False, True)
    ]
    sizes = [
        Fact(name=f"bytes-over-csr/{graph}", measure=partial(_bytes, graph), target="<= 1.3", tags=("bytes",))
        for graph in ("amazon_computers", "flickr", "PROTEINS")
    ]
    overhead = Fact(
        name="overhead/spmm", measure=_overhead, unit="µs", tags=("overhead", "cpu", "quick"), devices=("cpu",)
    )
    return [*builds, *sizes, overhead]
