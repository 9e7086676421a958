"""What is measured on a GPU without a race: translation, sizes, the host's share of a call, gather rates, peak memory.

Targets are those of the package's design: translation within 12 ns an edge, a batch of molecules within 1.5 ms, at most
1.3 times the bytes of a CSR with int32 indices and float32 values, gathers at 65 % of the rate of a copy that stays in
the L2, and a sixth of the memory that PyG's attention takes.
"""

import time
from functools import cache, partial
from statistics import median

import torch
import torch_tcgnn as tcg

from benchmarks.case import Fact, Run, Runner
from benchmarks.ceilings import Ceilings
from benchmarks.clock import calls_per_sample, clock_for
from benchmarks.torch_tcgnn import layers_gpu
from benchmarks.torch_tcgnn.gpu_peers import torch_csr
from benchmarks.torch_tcgnn.gpu_tasks import GENERATED, load_edges, make_task
from benchmarks.torch_tcgnn.spmm_gpu import translate
from benchmarks.torch_tcgnn.tasks import Task

REPEATS, SAMPLES, CALLS = 9, 30, 200
BUILDS = ("amazon_computers", "PROTEINS", "artist-like", "amazon0505-like", "YeastH-like")
GATHERS = ("artist-like", "soc-BlogCatalog-like", "arxiv-like", "amazon0505-like", "com-amazon-like", "communities")
MEMORY_GRAPH = "arxiv-like"

__all__ = ["facts"]


def _build_s(graph: str, blocks: bool, device: torch.device, seed: int) -> tuple[float, int]:
    """Seconds to translate edges that come in random order, and how many there are."""
    loaded = load_edges(graph, device)
    order = torch.randperm(loaded.num_edges, generator=torch.Generator().manual_seed(seed))
    edge_index = loaded.edge_index[:, order.to(loaded.edge_index.device)].contiguous().to(device)

    def build() -> float:
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        translated = tcg.TCGraph.from_edge_index(edge_index, num_nodes=loaded.num_nodes)
        if blocks:
            _ = translated.blocks
        torch.cuda.synchronize(device)
        return time.perf_counter() - start

    build()
    return median(build() for _ in range(REPEATS)), loaded.num_edges


def _build_ns(graph: str, blocks: bool, device: torch.device, seed: int) -> float:
    seconds, edges = _build_s(graph, blocks, device, seed)
    return seconds / edges * 1e9


def _build_ms(graph: str, device: torch.device, seed: int) -> float:
    return _build_s(graph, True, device, seed)[0] * 1e3


def _bytes(graph: str, device: torch.device, seed: int) -> float:
    translated = translate(make_task(graph, 1, device))
    held = translated.prepared(torch.float32).tensors()
    csr = 4 * (translated.num_rows + 1) + 8 * translated.num_edges
    return sum(tensor.numel() * tensor.element_size() for tensor in held) / csr


def ours(task: Task) -> Run:
    """A cached call."""
    graph = translate(task)
    return lambda: tcg.spmm(graph, task.x)


def _host_us(runner: Runner, device: torch.device, seed: int) -> float:
    """Microseconds of the host to queue one call; the graph is so small that the device never makes it wait."""
    random = torch.Generator(device).manual_seed(seed)
    ids = torch.arange(50, device=device)
    edge_index = torch.stack([(ids.repeat_interleave(4) * 7 + 3) % 50, ids.repeat_interleave(4)])
    x = torch.randn(50, 16, generator=random, device=device)
    run = runner(Task(edge_index, 4 * torch.arange(51, device=device), 50, x, x, x, None))

    def sample() -> float:
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(CALLS):
            run()
        return (time.perf_counter() - start) / CALLS * 1e6

    sample()
    return median(sample() for _ in range(SAMPLES))


@cache
def _gathered_bytes_per_s(graph: str, device: torch.device) -> float:
    task = make_task(graph, 128, device)
    translated, clock = translate(task), clock_for(device)
    rows = translated.prepared(task.x.dtype).gathered(tcg.explain(translated, task.x).path)

    def run() -> torch.Tensor:
        return tcg.spmm(translated, task.x)

    calls = calls_per_sample(clock, run)
    ms = median(clock.warm(run, calls) for _ in range(SAMPLES))
    return rows * task.x.shape[1] * task.x.element_size() / ms * 1e3


@cache
def _l2_copy_rate(device: torch.device) -> float:
    return Ceilings(device).copy(cached=True)


def _gather_tb(graph: str, device: torch.device, seed: int) -> float:
    return _gathered_bytes_per_s(graph, device) / 1e12


def _gather_of_copy(graph: str, device: torch.device, seed: int) -> float:
    return 100 * _gathered_bytes_per_s(graph, device) / _l2_copy_rate(device)


def _peak_bytes(run: Run, device: torch.device) -> int:
    run()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _memory_ratio(kind: str, device: torch.device, seed: int) -> float:
    declared = layers_gpu.KINDS[kind]
    layer = layers_gpu.make_layer(declared, MEMORY_GRAPH, device)
    theirs, own = (_peak_bytes(make(declared, layer), device) for make in (layers_gpu.pyg, layers_gpu.ours))
    return theirs / own


def _on_gpu(name: str, measure: object, unit: str = "", target: str = "", note: str = "", quick: bool = False) -> Fact:
    tags = (name.split("/")[0], "gpu", *(["quick"] if quick else []))
    return Fact(name=name, measure=measure, unit=unit, target=target, tags=tags, devices=("cuda",), note=note)


def facts() -> list[Fact]:
    """All facts of the package on a GPU."""
    return [
        *(
            _on_gpu(f"build/{graph}/{form}", partial(_build_ns, graph, form == "blocks"), "ns/edge", "<= 12",
                    quick=graph == "artist-like")
            for graph in BUILDS for form in ("csr", "blocks")
        ),
        _on_gpu("build-time/PROTEINS/blocks", partial(_build_ms, "PROTEINS"), "ms", "<= 1.5"),
        *(_on_gpu(f"bytes-over-csr/{graph}", partial(_bytes, graph), target="<= 1.3") for graph in GENERATED),
        _on_gpu("host/spmm", partial(_host_us, ours), "µs", note="to queue a cached call, graph of 200 edges",
                quick=True),
        _on_gpu("host/cusparse", partial(_host_us, torch_csr(torch.int32)), "µs",
                note="the same by torch.sparse.mm", quick=True),
        *(
            _on_gpu(f"gather-rate/{graph}/d128", partial(_gather_tb, graph), "TB/s",
                    note="rows of x that the kernel gathers, over its warm time; repeats come from caches")
            for graph in GATHERS
        ),
        *(
            _on_gpu(f"gather-of-copy/{graph}/d128", partial(_gather_of_copy, graph), "%", ">= 65",
                    note="gather-rate over the rate of a copy that stays in the L2")
            for graph in GATHERS
        ),
        *(
            _on_gpu(f"peak-memory/{kind}/{MEMORY_GRAPH}", partial(_memory_ratio, kind), "×",
                    ">= 6" if kind == "gat-step" else "", note="PyG's peak over ours, one training step",
                    quick=kind == "gat-step")
            for kind in layers_gpu.KINDS
        ),
    ]  # fmt: skip
