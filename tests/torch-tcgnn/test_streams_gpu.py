"""Streams, threads and CUDA graphs that share one graph on a GPU; operands on two devices."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch_tcgnn as tcg
from torch import Tensor

pytestmark = pytest.mark.gpu
NODES, EDGES, WIDTH, STREAMS = 50_000, 1_000_000, 32, 4


def edge_list(nodes: int = NODES, edges: int = EDGES) -> Tensor:
    rng = torch.Generator("cuda").manual_seed(0)
    return torch.randint(0, nodes, (2, edges), generator=rng, device="cuda")


def randn(*shape: int, seed: int = 0) -> Tensor:
    rng = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=rng, device="cuda").requires_grad_()


def step(g: tcg.TCGraph, x: Tensor, weight: Tensor) -> list[Tensor]:
    """Forward and backward through all that is built on first need: work lists, blocks, the transpose.

    Not backward through the maximum, which PyTorch adds in no fixed order outside deterministic mode.
    """
    h = tcg.spmm(g, x, weight * tcg.edge_softmax(g, weight))
    heads = h.view(-1, 2, WIDTH // 2)
    h = h + tcg.gat_attention(g, heads, heads.sum(-1), heads.mean(-1)).flatten(1)
    h = h + tcg.spmm(g, h.detach(), reduce="max")
    return [h.detach(), *torch.autograd.grad(h.square().mean(), [x, weight])]


@pytest.fixture(params=["auto", "cuda", "tc"])
def path(request) -> str:
    return request.param


def test_what_one_stream_builds_another_reads(path):
    """The second stream waits for the inputs only: it cannot know what the first has built."""
    edge_index, x, weight = edge_list(), randn(NODES, WIDTH), randn(EDGES, seed=1)
    expected = step(tcg.TCGraph.from_edge_index(edge_index, NODES, path=path), x, weight)
    for _ in range(5):
        g = tcg.TCGraph.from_edge_index(edge_index, NODES, path=path)
        torch.cuda.synchronize()
        found = []
        for stream in [torch.cuda.Stream() for _ in range(2)]:
            with torch.cuda.stream(stream):
                found.append(step(g, x, weight))
        torch.cuda.synchronize()
        for results in found:
            assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def test_threads_with_streams_of_their_own_share_a_fresh_graph(path):
    edge_index, x, weight = edge_list(), randn(NODES, WIDTH), randn(EDGES, seed=1)
    expected = step(tcg.TCGraph.from_edge_index(edge_index, NODES, path=path), x, weight)
    start = threading.Barrier(STREAMS)

    def work(g: tcg.TCGraph) -> list[Tensor]:
        stream = torch.cuda.Stream()
        start.wait()
        with torch.cuda.stream(stream):
            results = step(g, x, weight)
        stream.synchronize()
        return results

    with ThreadPoolExecutor(STREAMS) as pool:
        for _ in range(3):
            g = tcg.TCGraph.from_edge_index(edge_index, NODES, path=path)
            torch.cuda.synchronize()
            for results in pool.map(work, [g] * STREAMS):
                assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def test_layers_in_threads_share_the_cache():
    tcg.cache.clear()
    layer, x = tcg.nn.GCNConv(WIDTH, 8).cuda(), randn(NODES, WIDTH).detach()
    edge_index = edge_list()
    expected = layer(x, edge_index.clone()).detach()

    def work(edges: Tensor) -> Tensor:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.no_grad():
            out = layer(x, edges)
        stream.synchronize()
        return out

    with ThreadPoolExecutor(STREAMS) as pool:
        for _ in range(3):
            edges = edge_index.clone()
            torch.cuda.synchronize()
            for out in pool.map(work, [edges] * STREAMS):
                torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    tcg.cache.clear()


def test_forward_and_backward_are_captured_in_a_cuda_graph(path):
    nodes, edges = 301, 3_001
    g = tcg.TCGraph.from_edge_index(edge_list(nodes, edges), nodes, path=path)
    x, weight = randn(nodes, WIDTH), randn(edges, seed=1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(g, x, weight)
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        replayed = step(g, x, weight)
    with torch.no_grad():
        x.copy_(randn(nodes, WIDTH, seed=2))
        weight.copy_(randn(edges, seed=3))
    captured.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(replayed, step(g, x, weight), strict=True))


@pytest.mark.parametrize("name", ["GCNConv", "GATConv", "SAGEConv"])
def test_a_layer_is_captured_once_its_graph_is_cached(name):
    torch.manual_seed(0)
    layer, edge_index = getattr(tcg.nn, name)(WIDTH, 8).cuda(), edge_list(301, 3_001)
    x = randn(301, WIDTH)

    def train() -> list[Tensor]:
        out = layer(x, edge_index)
        return [out.detach(), *torch.autograd.grad(out.square().mean(), [x, *layer.parameters()])]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            train()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        replayed = train()
    with torch.no_grad():
        x.copy_(randn(301, WIDTH, seed=2))
    captured.replay()
    torch.cuda.synchronize()
    for got, expected in zip(replayed, train(), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


ON_CPU, ON_GPU = r"{} is on cpu, but the graph is on cuda:0", r"{} is on cuda:0, but the graph is on cpu"


@pytest.mark.parametrize(
    "name, call",
    [
        ("x", lambda g, t, e: tcg.spmm(g, t)),
        ("weight", lambda g, t, e: tcg.spmm(g, t.to(g.device), e)),
        ("a", lambda g, t, e: tcg.sddmm(g, t, t.to(g.device))),
        ("b", lambda g, t, e: tcg.sddmm(g, t.to(g.device), t)),
        ("logits", lambda g, t, e: tcg.edge_softmax(g, e)),
        ("h", lambda g, t, e: tcg.gat_attention(g, t.unsqueeze(1), t[:, :1], t[:, :1])),
        ("alpha_dst", lambda g, t, e: tcg.gat_attention(g, t[:, None].to(g.device), t[:, :1].to(g.device), t[:, :1])),
    ],
)
def test_operands_on_another_device_name_both(name, call):
    g, t, e = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 2), torch.ones(2, 4), torch.ones(2)
    with pytest.raises(ValueError, match=ON_CPU.format(name)):
        call(g.to("cuda"), t, e)
    with pytest.raises(ValueError, match=ON_GPU.format(name)):
        call(g, t.cuda(), e.cuda())


@pytest.mark.parametrize("name", ["GCNConv", "GATConv", "SAGEConv", "TransformerConv"])
def test_a_layer_names_the_devices_of_features_and_edges(name):
    layer, edge_index = getattr(tcg.nn, name)(4, 2).cuda(), torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match=r"(?s)(cpu.*cuda:0|cuda:0.*cpu)"):
        layer(torch.ones(2, 4, device="cuda"), edge_index)
