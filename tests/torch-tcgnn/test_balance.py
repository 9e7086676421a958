"""The CPU sums rows from a balanced copy where its threads would wait for each other; results keep their bits."""

import gc

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn.kernels.cpu import balance
from torch_tcgnn.kernels.cpu import permuted as permuted_weights
from torch_tcgnn.kernels.cpu.balance import balanced, gains
from torch_tcgnn.kernels.cpu.permuted import permuted


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def hubs_first(rows: int = 700, edges: int = 30_000) -> torch.Tensor:
    """Nine tenths of the edges enter the first half of the nodes, in no order."""
    rng = torch.Generator().manual_seed(0)
    target = torch.randint(rows // 2, (edges,), generator=rng)
    late = torch.rand(edges, generator=rng) < 0.1
    return torch.stack([torch.randint(rows, (edges,), generator=rng), torch.where(late, target + rows // 2, target)])


def graph(sort: bool = False) -> tcg.TCGraph:
    g = tcg.TCGraph.from_edge_index(hubs_first(), 700)
    return g.in_storage_order() if sort else g


def plain(monkeypatch, call):
    with monkeypatch.context() as m:
        m.setattr("torch_tcgnn.kernels.cpu.spmm.balanced", lambda adjacency: None)
        return call()


@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("heads", [None, 3])
def test_results_keep_their_bits_forward_and_backward(two_threads, monkeypatch, heads, weighted, dtype, sort):
    shape = (700, 5) if heads is None else (700, heads, 5)
    x = torch.randn(shape).to(dtype).requires_grad_()
    w = torch.rand(30_000, *([] if heads is None else [heads])).to(dtype).requires_grad_() if weighted else None

    def step():
        g = graph(sort)
        out = tcg.spmm(g, x, w)
        return out, *torch.autograd.grad(out.square().sum(), [t for t in (x, w) if t is not None])

    assert balanced(graph(sort).prepared()) is not None
    assert all(torch.equal(a, b) for a, b in zip(step(), plain(monkeypatch, step)))


def test_every_thread_gets_as_many_entries(two_threads):
    rows = balanced(graph().prepared())
    for threads in (2, 3, 7, 16):
        cuts = rows.rowptr[:: -(-700 // threads)][:threads]
        loads = torch.cat([cuts, rows.rowptr[-1:]]).diff()[:-1].double()
        assert loads.max() / loads.mean() < 1.2


def test_the_copy_holds_every_entry_of_every_row(two_threads):
    a = graph().prepared()
    rows = balanced(a)
    assert sorted(rows.place.tolist()) == list(range(700))
    for row in (0, 1, 350, 699):
        begin, end = rows.rowptr[rows.place[row]], rows.rowptr[rows.place[row] + 1]
        assert rows.entry[begin:end].tolist() == list(range(a.rowptr[row], a.rowptr[row + 1]))
        assert torch.equal(rows.col[begin:end], a.col[a.rowptr[row] : a.rowptr[row + 1]])
        assert torch.equal(rows.edge[begin:end], a.edge[a.rowptr[row] : a.rowptr[row + 1]])


def test_one_thread_and_even_rows_are_left_alone(two_threads):
    even = torch.arange(0, 9_001, 9)
    assert not gains(even, threads=2)
    assert not gains(even, threads=16)
    heavy_first = torch.cat([torch.arange(0, 9_000, 90), torch.arange(9_000, 9_101)])
    assert gains(heavy_first, threads=2)
    assert not gains(heavy_first, threads=1)


def test_few_entries_a_row_are_not_worth_putting_results_back():
    rowptr = torch.cat([torch.arange(0, 300, 2), torch.arange(300, 451)])  # two entries a row, then one
    assert not gains(rowptr, threads=2)


@pytest.mark.parametrize("rowptr", [[0], [0, 0, 0], [0, 5]])
def test_the_smallest_graphs(rowptr):
    assert not gains(torch.tensor(rowptr), threads=4)


def test_graphs_of_one_pattern_share_the_copy_and_free_it(two_threads):
    g = graph()
    other = g.with_weight(torch.rand(g.num_edges))
    assert balanced(g.prepared()).col is balanced(other.prepared()).col
    assert balanced(g.in_storage_order().prepared()).col is balanced(g.prepared()).col
    held = len(balance._BALANCED)
    del g, other
    gc.collect()
    assert len(balance._BALANCED) < held


def test_the_op_takes_the_same_copy(two_threads):
    g = graph()
    want = tcg.spmm(g, torch.ones(700, 4))
    held = len(balance._BALANCED)
    got = torch.ops.torch_tcgnn.spmm(g.operands(), [], torch.ones(700, 4), None, "ieee", None)
    assert torch.equal(got, want)
    assert len(balance._BALANCED) == held


def test_weights_that_do_not_train_are_permuted_once_and_again_after_a_change(two_threads, monkeypatch):
    g, x, w = graph(), torch.randn(700, 4), torch.rand(30_000)
    edge = balanced(g.prepared()).edge
    first = permuted(w, edge)
    assert permuted(w, edge) is first
    w.mul_(2.0)
    assert torch.equal(tcg.spmm(g, x, w), plain(monkeypatch, lambda: tcg.spmm(g, x, w)))
    assert torch.equal(permuted(w, edge), 2.0 * first)
    assert permuted(w.requires_grad_(), edge) is not permuted(w, edge)


def test_a_weight_in_another_storage_is_permuted_anew():
    w, back = torch.nn.Parameter(torch.rand(5), requires_grad=False), torch.arange(5).flip(0)
    permuted(w, back)
    torch.nn.utils.vector_to_parameters(torch.ones(5), [w])  # sets .data, which no version counts
    assert torch.equal(permuted(w, back), torch.ones(5))


def test_what_was_kept_before_a_weight_trained_is_forgotten():
    w, back = torch.rand(5), torch.arange(5).flip(0)
    permuted(w, back)
    permuted(w.requires_grad_(), back)
    w.data.fill_(1.0)  # uncounted, as the steps of a fused optimizer are
    assert torch.equal(permuted(w.requires_grad_(False), back), torch.ones(5))


def test_each_order_of_a_weight_is_its_own():
    w, there, back = torch.rand(5), torch.arange(5), torch.arange(5).flip(0)
    assert torch.equal(permuted(w, there), w)
    assert torch.equal(permuted(w, back), w.flip(0))
    assert torch.equal(permuted(w, there), w)
    with torch.inference_mode():
        assert torch.equal(permuted(torch.ones(5), back), torch.ones(5))


def test_what_is_kept_goes_with_the_weight():
    gc.collect()
    held = len(permuted_weights._KEPT)
    w = torch.rand(5)
    permuted(w, torch.arange(5))
    del w
    gc.collect()
    assert len(permuted_weights._KEPT) == held


def test_narrow_features_leave_training_weights_where_they_are(two_threads, monkeypatch):
    """Permuting them would cost more than the threads' waiting."""
    g, w = graph(sort=True), torch.rand(30_000, requires_grad=True)
    monkeypatch.setattr("torch_tcgnn.kernels.cpu.spmm.permuted", None)
    tcg.spmm(g, torch.randn(700, 95), w)
    with pytest.raises(TypeError, match="not callable"):
        tcg.spmm(g, torch.randn(700, 96), w)
