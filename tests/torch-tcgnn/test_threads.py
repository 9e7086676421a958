"""Threads that share one graph: what it builds on first need is built once for all of them, and results are right."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn import bitblock, graph, views
from torch_tcgnn.nn.lookup import remembered

THREADS, NODES, EDGES = 4, 60, 400
RNG = torch.Generator().manual_seed(0)
EDGE_INDEX = torch.randint(0, NODES, (2, EDGES), generator=RNG)
X = torch.randn(NODES, 2, 4, generator=RNG)


@pytest.fixture(autouse=True)
def _threads_change_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(work: Callable[[int], Any]) -> list[Any]:
    """``work(0)``, ``work(1)``, … started at the same moment; what they return, or the first error."""
    barrier = threading.Barrier(THREADS)

    def start(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(start, range(THREADS)))


def step(g: tcg.TCGraph) -> list[torch.Tensor]:
    """Forward and backward through every operator that keeps something with the graph."""
    x = X.clone().requires_grad_()
    logits = tcg.sddmm(g, x, x)
    h = tcg.spmm(g, x, tcg.edge_softmax(g, logits))
    h = h + tcg.gat_attention(g, h, h.sum(-1), h.mean(-1)) + tcg.dot_attention(g, h, h, h)
    return [h, *torch.autograd.grad(h.square().sum(), x)]


PARTS = {
    "transpose": (lambda g: g.t(), (graph, "transpose")),
    "operands": (lambda g: g.prepared(), (graph, "paths_on")),
    "blocks": (lambda g: g.blocks, (bitblock, "build")),
    "work list": (lambda g: g.views.plan, (views, "plan_rows")),
    "statistics": (lambda g: g.stats, (views, "graph_stats")),
}


@pytest.mark.parametrize("part", PARTS)
def test_all_threads_hold_the_same_part(part, monkeypatch):
    """Also where every thread begins to build before the first has finished."""
    read, (module, name) = PARTS[part]
    build, begun = getattr(module, name), []

    def slow(*args: Any, **options: Any) -> Any:
        begun.append(name)
        time.sleep(0.05)
        return build(*args, **options)

    monkeypatch.setattr(module, name, slow)
    g = tcg.TCGraph.from_edge_index(EDGE_INDEX, NODES)
    found = together(lambda _: read(g))
    assert begun
    assert len({id(f) for f in found}) == 1
    assert read(g) is found[0]


def test_forward_and_backward_on_one_fresh_graph():
    expected = step(tcg.TCGraph.from_edge_index(EDGE_INDEX, NODES))
    for _ in range(20):
        fresh = tcg.TCGraph.from_edge_index(EDGE_INDEX, NODES)
        for found in together(lambda _, g=fresh: step(g)):
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert fresh.t().t() is fresh


def test_weights_change_while_layers_keep_things_with_the_graph():
    weight = torch.rand(EDGES, generator=RNG)
    g = tcg.TCGraph.from_edge_index(EDGE_INDEX, NODES)

    done = threading.Event()

    def work(number: int) -> None:
        if number > 0:
            while not done.is_set():
                assert g.with_weight(weight).weight is weight
            return
        try:
            for turn in range(5_000):
                remembered(g, None, (NODES, NODES), "source_to_target", (turn,), lambda turn=turn: turn)
        finally:
            done.set()

    together(work)


def test_layers_share_the_cache():
    tcg.cache.clear()
    layers = [tcg.nn.GCNConv(8, 8), tcg.nn.GATConv(8, 8), tcg.nn.SAGEConv(8, 8), tcg.nn.GATv2Conv(8, 8)]
    x = X.flatten(1)
    expected = [layer(x, EDGE_INDEX).detach() for layer in layers]
    for _ in range(10):
        edge_index = EDGE_INDEX.clone()
        for found in together(lambda k, e=edge_index: layers[k](x, e).detach()):
            assert any(torch.equal(found, e) for e in expected)
    tcg.cache.clear()


def test_looking_at_the_cache_while_others_fill_it():
    cache = tcg.TCGraphCache(max_graphs=3, max_bytes=1 << 20)

    def work(number: int) -> None:
        for size in range(200):
            if number == 0:
                assert cache.info().graphs <= 3
            elif number == 1 and size % 50 == 49:
                cache.clear()
            else:
                edge_index = EDGE_INDEX[:, : 10 + size % 7].clone()
                g = cache.graph(edge_index, NODES)
                assert torch.equal(g.t().to_edge_index().flip(0), edge_index)

    together(work)
