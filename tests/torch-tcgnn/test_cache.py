"""`TCGraphCache`: what is a hit, what is a miss, and what is let go."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
import torch_tcgnn as tcg


@pytest.fixture
def cache() -> tcg.TCGraphCache:
    return tcg.TCGraphCache(max_graphs=4)


def ring(num_nodes: int = 4) -> torch.Tensor:
    ids = torch.arange(num_nodes)
    return torch.stack([ids, (ids + 1) % num_nodes])


def test_same_object_is_translated_once(cache):
    edge_index = ring()
    assert cache.graph(edge_index, 4) is cache.graph(edge_index, 4)
    assert (cache.info().hits, cache.info().misses, cache.info().graphs) == (1, 1, 1)


def test_equal_content_in_another_object_is_a_miss(cache):
    edge_index = ring()
    other = edge_index.clone()
    assert cache.graph(edge_index, 4) is not cache.graph(other, 4)


def test_in_place_edit_is_rebuilt(cache):
    edge_index = ring()
    before = cache.graph(edge_index, 4)
    edge_index[1, 0] = 3
    after = cache.graph(edge_index, 4)
    assert after is not before
    assert torch.equal(after.to_edge_index(), edge_index)
    assert cache.info().graphs == 1, "the outdated entry was replaced"


def test_other_data_is_seen(cache):
    edge_index = torch.tensor([[0, 1], [1, 0]])
    cache.graph(edge_index, 2)
    edge_index.data = torch.tensor([[1, 1], [1, 0]])
    assert cache.graph(edge_index, 2).to_edge_index().tolist() == [[1, 1], [1, 0]]


def test_in_place_edit_through_a_view_is_seen(cache):
    edge_index = ring()
    cache.graph(edge_index, 4)
    edge_index.view(-1)[0].fill_(2)
    assert torch.equal(cache.graph(edge_index, 4).to_edge_index(), edge_index)


def test_options_are_part_of_the_key(cache):
    edge_index = ring()
    graphs = {
        id(g)
        for g in (
            cache.graph(edge_index, 4),
            cache.graph(edge_index, 5),
            cache.graph(edge_index, 4, flow="target_to_source"),
        )
    }
    assert len(graphs) == 3


def test_freed_object_frees_its_graph(cache):
    edge_index = ring()
    alive = weakref.ref(cache.graph(edge_index, 4))
    del edge_index
    gc.collect()
    assert cache.info().graphs == 0
    assert alive() is None


def test_reused_address_is_never_a_hit(cache):
    for shift in range(50):  # CPython hands the freed object's address to the next tensor, mostly
        edge_index = (ring() + shift) % 4
        assert torch.equal(cache.graph(edge_index, 4).to_edge_index(), edge_index)
        del edge_index
    assert cache.info().hits == 0


def test_address_with_a_dead_reference_is_a_miss(cache):
    edge_index = ring()
    cache.graph(edge_index, 4)
    ((key, entry),) = cache._entries.items()
    other = ring()
    forged = type(entry)((weakref.ref(other),), entry.prints, "stale")
    cache._entries[key] = forged
    assert cache.graph(edge_index, 4) != "stale"


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo])
def test_sparse_tensor_is_cached_freed_and_watched(cache, layout):
    adj = torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse(layout=layout)
    graph = cache.graph(adj)
    assert cache.graph(adj) is graph
    (adj._values() if layout == torch.sparse_coo else adj.values()).mul_(2)
    assert sorted(cache.graph(adj).weight.tolist()) == [4.0, 6.0]
    del adj, graph
    gc.collect()
    assert cache.info().graphs == 0


def test_edit_of_the_data_of_an_edge_index_is_seen(cache):
    pyg = pytest.importorskip("torch_geometric")
    data = ring()
    edge_index = pyg.EdgeIndex(data, sparse_size=(4, 4))
    assert cache.graph(edge_index) is cache.graph(edge_index)
    data[1, 0] = 3
    assert torch.equal(cache.graph(edge_index).to_edge_index(), data)


def test_weights_are_part_of_the_key(cache):
    edge_index, weight = ring(), torch.ones(4)
    graph = cache.graph(edge_index, 4, weight)
    assert cache.graph(edge_index, 4, weight) is graph
    weight[0] = 5.0
    assert cache.graph(edge_index, 4, weight).weight[0] == 5.0
    alive = weakref.ref(weight)
    del weight
    gc.collect()
    assert alive() is None
    assert cache.info().graphs == 0


def test_weights_that_carry_a_gradient_are_not_remembered(cache):
    edge_index, weight = ring(), torch.ones(4, requires_grad=True)
    graph = cache.graph(edge_index, 4, weight * 2)
    tcg.spmm(graph, torch.ones(4, 1)).sum().backward()
    assert weight.grad.tolist() == [2.0] * 4
    assert cache.info().graphs == 0


def test_least_recently_used_is_evicted(cache):
    graphs = [ring(4) for _ in range(5)]
    for edge_index in graphs[:4]:
        cache.graph(edge_index, 4)
    cache.graph(graphs[0], 4)
    cache.graph(graphs[4], 4)
    misses = cache.info().misses
    cache.graph(graphs[0], 4)
    assert cache.info().misses == misses, "recently used stays"
    cache.graph(graphs[1], 4)
    assert cache.info().misses == misses + 1, "least recently used went"
    assert cache.info().evictions == 2


def test_bytes_are_counted_and_limited():
    first, second, large = ring(100), ring(100), ring(10_000)
    size = tcg.cache.num_bytes(tcg.as_graph(first, 100))
    cache = tcg.TCGraphCache(max_bytes=int(1.5 * size))
    cache.graph(first, 100)
    assert cache.info().num_bytes == size
    cache.graph(second, 100)
    assert cache.info().graphs == 1
    cache.graph(large, 10_000)
    assert cache.info().graphs == 1, "a graph above the limit is not held"


def test_derived_parts_count(cache):
    edge_index = torch.tensor([[0, 1, 2], [1, 2, 2]])
    graph = cache.graph(edge_index, 3)
    before = cache.info().num_bytes
    graph.t()
    assert cache.info().num_bytes > before


def test_disabled_neither_reads_nor_writes(cache):
    edge_index = ring()
    graph = cache.graph(edge_index, 4)
    with cache.disabled():
        assert cache.graph(edge_index, 4) is not graph
        cache.graph(edge_index, 9)
    assert cache.graph(edge_index, 4) is graph
    assert cache.info().graphs == 1


def test_disabled_holds_for_one_thread(cache):
    edge_index, found = ring(), []
    graph = cache.graph(edge_index, 4)
    with cache.disabled():
        thread = threading.Thread(target=lambda: found.append(cache.graph(edge_index, 4)))
        thread.start()
        thread.join()
    assert found == [graph]


def test_clear_forgets(cache):
    edge_index = ring()
    cache.graph(edge_index, 4)
    cache.clear()
    assert (cache.info().graphs, cache.info().misses) == (0, 0)


def test_threads_get_one_graph(cache):
    edge_index, found, barrier = ring(50), [], threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        for _ in range(20):
            found.append(cache.graph(edge_index, 50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(g) for g in found}) == 1


def test_tensors_may_die_while_others_look_up(cache):
    failures = []

    def work(seed: int) -> None:
        try:
            for step in range(100):
                edge_index = (ring() + seed + step) % 4
                assert torch.equal(cache.graph(edge_index, 4).to_edge_index(), edge_index)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_inference_tensors_are_not_remembered(cache):
    with torch.inference_mode():
        edge_index = ring()
        assert cache.graph(edge_index, 4) is not cache.graph(edge_index, 4)


def test_graph_built_in_inference_mode_trains():
    edge_index, x = torch.tensor([[0, 1, 2], [1, 2, 2]]), torch.randn(3, 4)
    conv = tcg.nn.GCNConv(4, 6)
    with torch.inference_mode():
        conv(x, edge_index)
    conv(x.requires_grad_(), edge_index).sum().backward()
    assert x.grad is not None


def test_layers_share_the_default_cache():
    tcg.cache.clear()
    edge_index, x = torch.tensor([[0, 1, 2], [1, 2, 2]]), torch.randn(3, 4)
    first, second = tcg.nn.SAGEConv(4, 4), tcg.nn.GraphConv(4, 4)
    first(x, edge_index)
    misses = tcg.cache.info().misses
    second(x, edge_index)
    first(x, edge_index)
    assert tcg.cache.info().misses == misses
    tcg.cache.clear()


@pytest.mark.parametrize("limit", [{"max_graphs": 0}, {"max_bytes": 0}])
def test_limits_below_one_are_refused(limit):
    (name,) = limit
    with pytest.raises(ValueError, match=f"{name} must be at least 1.*got 0"):
        tcg.TCGraphCache(**limit)


def test_weights_that_a_fused_optimizer_edits_are_read_anew():
    torch.manual_seed(0)
    edge_index, x = torch.randint(0, 9, (2, 40)), torch.randn(9, 4)
    layer, weight = tcg.nn.GCNConv(4, 3), torch.nn.Parameter(torch.rand(40) + 1)
    optimizer = torch.optim.SGD([weight], lr=0.1, fused=True)
    for _ in range(3):
        optimizer.zero_grad()
        layer(x, edge_index, weight).square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            expected = layer(x, edge_index.clone(), weight.detach().clone())
            torch.testing.assert_close(layer(x, edge_index, weight), expected)


@pytest.mark.parametrize("write", ["numpy", "data", "collective"])
def test_a_write_that_raises_no_version_is_seen_once_the_version_is_raised(write, tmp_path):
    def overwrite(tensor: torch.Tensor, other: torch.Tensor) -> None:
        before = tensor._version
        if write == "numpy":
            tensor.numpy()[...] = other.numpy()
        elif write == "data":
            tensor.data.copy_(other)
        else:
            torch.distributed.scatter(tensor, [other])
        assert tensor._version == before, "the limit is still one"

    if write == "collective":
        if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
            pytest.skip("this PyTorch has no gloo")
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        edges, weight, x = torch.tensor([[0, 1], [1, 2]]), torch.tensor([1.0, 2.0]), torch.ones(3, 1)
        g, cache = tcg.TCGraph.from_edge_index(edges, 3), tcg.TCGraphCache()
        cache.graph(edges, 3)
        tcg.spmm(g, x, weight)
        overwrite(edges, torch.tensor([[1, 2], [0, 0]]))
        overwrite(weight, torch.tensor([5.0, 7.0]))
        torch.autograd.graph.increment_version([edges, weight])
        assert cache.graph(edges, 3).to_edge_index().tolist() == [[1, 2], [0, 0]]
        assert tcg.spmm(g, x, weight).flatten().tolist() == [0.0, 5.0, 7.0]
    finally:
        if write == "collective":
            torch.distributed.destroy_process_group()
