"""All kernels on a GPU against float64: both paths, in CUDA C++ and, as without NVRTC, in Triton.

Tolerances, elementwise, with S = |A| |X| and d the entries summed: (2⁻²⁰ + 2⁻²² √d) S for float32 accuracy, and on top
the rounding of what is stored in fewer bits: TF32 terms, weights of the feature type, half-precision results.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch_tcgnn as tcg
from torch import Tensor
from torch_tcgnn import reference
from torch_tcgnn.kernels import choose

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:torch_tcgnn. kernels in CUDA C.. cannot be compiled"),
]

WIDTHS = (1, 7, 16, 17, 32, 41, 47, 64, 96, 121, 128, 129, 256, 512)
FEW_WIDTHS = (1, 17, 32, 41, 128, 256)
HALF_ULP = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
HALVES = tuple(HALF_ULP)


@pytest.fixture(params=["cuda", "tc", "cuda-triton", "tc-triton"])
def path(request, monkeypatch) -> str:
    """The path of a graph; ``…-triton`` is what runs on a machine without NVRTC."""
    path, _, hide = request.param.partition("-")
    if hide:
        monkeypatch.setattr(choose.nvrtc, "unavailable", lambda: "NVRTC is hidden by this test")
    elif missing := choose.nvrtc.unavailable():
        pytest.skip(missing)
    return path


@pytest.fixture
def random() -> Callable[..., Tensor]:
    generator = torch.Generator("cuda").manual_seed(11)

    def sample(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cuda").to(dtype)

    return sample


@dataclass(frozen=True)
class Edges:
    """An edge list on the GPU, rows are targets."""

    row: Tensor
    col: Tensor
    num_rows: int
    num_cols: int

    @property
    def num_edges(self) -> int:
        return self.row.shape[0]

    def graph(self, path: str, **options: object) -> tcg.TCGraph:
        sizes = (self.num_cols, self.num_rows)
        return tcg.TCGraph.from_edge_index(torch.stack([self.col, self.row]), sizes, path=path, **options)

    def dense(self, weight: Tensor | None) -> Tensor:
        value = torch.ones(self.num_edges, device="cuda") if weight is None else weight
        a = torch.zeros(self.num_rows, self.num_cols, dtype=torch.float64, device="cuda")
        return a.index_put((self.row, self.col), value.double(), accumulate=True)


def bipartite(num_rows: int = 203, num_cols: int = 187, num_edges: int = 3000) -> Edges:
    """Directed, unsorted, with duplicates and empty rows; no size is a multiple of 8."""
    g = torch.Generator("cuda").manual_seed(num_edges)
    row = torch.randint(0, num_rows * 9 // 10, (num_edges,), generator=g, device="cuda")
    return Edges(row, torch.randint(0, num_cols, (num_edges,), generator=g, device="cuda"), num_rows, num_cols)


def hubs(num_nodes: int = 6001) -> Edges:
    """A row of all columns (cut in pieces), a wide row, a column of all rows, few other edges."""
    everyone = torch.arange(num_nodes, device="cuda")
    g = torch.Generator("cuda").manual_seed(5)
    few = torch.randint(0, num_nodes, (2, 500), generator=g, device="cuda")
    row = torch.cat([torch.full_like(everyone, 9), torch.full_like(everyone[:250], 77), everyone, few[0]])
    col = torch.cat([everyone, everyone[:250] * 3, torch.full_like(everyone, 4), few[1]])
    order = torch.randperm(row.shape[0], generator=g, device="cuda")
    return Edges(row[order], col[order], num_nodes, num_nodes)


def check_sum(
    out: Tensor, edges: Edges, x: Tensor, weight: Tensor | None, precision: str = "ieee", tensor_cores: bool = True
) -> None:
    """Against A X in float64, elementwise within the tolerance of the module's docstring."""
    a = edges.dense(weight)
    exact = a @ x.double()
    scale = edges.dense(None if weight is None else weight.abs()) @ x.double().abs()
    degree = torch.bincount(edges.row, minlength=edges.num_rows).double().view(-1, 1)
    bound = (2.0**-20 + 2.0**-22 * degree.sqrt()) * scale
    if precision == "tf32" and tensor_cores:
        bound += scale * 2.0 ** (-11 if weight is None else -10)
    if x.dtype in HALVES:
        bound += HALF_ULP[x.dtype] * exact.abs() + 2.0**-24
        if weight is not None:
            bound += HALF_ULP[x.dtype] * scale
    error = (out.double() - exact).abs()
    assert out.dtype == x.dtype
    assert (error <= bound).all(), f"{(error - bound).max().item():.3g} above the bound"


# --- sums ---


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("features", WIDTHS)
def test_spmm_has_float32_accuracy_at_every_width(path, random, features, weighted):
    edges = bipartite()
    x, weight = random(edges.num_cols, features), random(edges.num_edges) if weighted else None
    check_sum(tcg.spmm(edges.graph(path), x, weight, precision="ieee"), edges, x, weight)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("features", FEW_WIDTHS)
@pytest.mark.parametrize("dtype", HALVES)
def test_spmm_of_halves_accumulates_in_float32(path, random, dtype, features, weighted):
    edges = bipartite()
    x, weight = random(edges.num_cols, features, dtype=dtype), random(edges.num_edges) if weighted else None
    check_sum(tcg.spmm(edges.graph(path), x, weight), edges, x, weight)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("features", [17, 128])
def test_spmm_in_tf32_stays_in_its_bound(path, random, features, weighted):
    edges = bipartite()
    x, weight = random(edges.num_cols, features), random(edges.num_edges) if weighted else None
    check_sum(tcg.spmm(edges.graph(path), x, weight, precision="tf32"), edges, x, weight, "tf32", path == "tc")


def test_float64_keeps_its_precision(path, random):
    edges = bipartite()
    x, weight = random(edges.num_cols, 33).double(), random(edges.num_edges).double()
    out = tcg.spmm(edges.graph(path), x, weight)
    torch.testing.assert_close(out, edges.dense(weight) @ x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_integers_are_bit_exact(path, random, dtype, precision):
    for edges in (bipartite(), hubs()):
        limit = 255 if dtype == torch.bfloat16 else 1023
        x = (random(edges.num_cols, 40) * limit / 3).round().clamp(-limit, limit).to(dtype)
        out = tcg.spmm(edges.graph(path), x, precision=precision)
        assert torch.equal(out, (edges.dense(None) @ x.double()).to(torch.float32).to(dtype))


@pytest.mark.parametrize("heads, features", [(1, 16), (2, 5), (8, 8), (3, 40)])
def test_weights_that_differ_by_head(path, random, heads, features):
    edges = bipartite()
    x, weight = random(edges.num_cols, heads, features), random(edges.num_edges, heads)
    out = tcg.spmm(edges.graph(path), x, weight)
    for h in range(heads):
        check_sum(out[:, h], edges, x[:, h], weight[:, h])
    check_sum(tcg.spmm(edges.graph(path), x).flatten(1), edges, x.flatten(1), None)


@pytest.mark.parametrize("features", [3, 41, 128])
def test_hubs_are_cut_and_added_in_order(path, random, features):
    edges = hubs()
    graph = edges.graph(path)
    x, weight = random(edges.num_cols, features), random(edges.num_edges)
    for w in (None, weight):
        out = tcg.spmm(graph, x, w, precision="ieee")
        check_sum(out, edges, x, w)
        assert torch.equal(out, tcg.spmm(graph, x, w, precision="ieee"))


@pytest.mark.parametrize("reorder", ["degree", "rcm", "lsh"])
def test_reordered_rows_land_in_their_places(path, random, reorder):
    edges = bipartite(200, 200)
    x = random(edges.num_cols, 24)
    check_sum(tcg.spmm(edges.graph(path, reorder=reorder), x), edges, x, None)


def test_strided_and_expanded_features(path, random):
    edges = bipartite()
    graph = edges.graph(path)
    for x in (random(edges.num_cols, 80)[:, 7:40], random(24, edges.num_cols).t(), random(1, 16).expand(187, 16)):
        check_sum(tcg.spmm(graph, x), edges, x, None)


@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("features", FEW_WIDTHS)
def test_extrema_are_exact(path, random, features, reduce):
    for edges in (bipartite(), hubs()):
        x, weight = random(edges.num_cols, features), random(edges.num_edges)
        for w in (None, weight):
            want = reference.spmm_extremum(edges.row, edges.col, x, w, edges.num_rows, reduce == "max")
            assert torch.equal(tcg.spmm(edges.graph(path), x, w, reduce=reduce), want)


# --- edges ---


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("features", [*FEW_WIDTHS, 600])
def test_sddmm_at_every_edge_in_input_order(path, random, features, dtype):
    for edges in (bipartite(), hubs(801)):
        a, b = random(edges.num_rows, features, dtype=dtype), random(edges.num_cols, features, dtype=dtype)
        out = tcg.sddmm(edges.graph(path), a, b, precision="ieee")
        left, right = a.double()[edges.row], b.double()[edges.col]
        exact, scale = (left * right).sum(1), (left * right).abs().sum(1)
        bound = (2.0**-20 + 2.0**-22 * features**0.5) * scale + HALF_ULP.get(dtype, 0) * exact.abs() + 2.0**-24
        assert out.dtype == dtype
        assert ((out.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("heads, features", [(2, 5), (8, 16)])
def test_sddmm_with_heads(path, random, heads, features):
    edges = bipartite()
    a, b = random(edges.num_rows, heads, features), random(edges.num_cols, heads, features)
    want = reference.sddmm(edges.row, edges.col, a.double(), b.double())
    torch.testing.assert_close(tcg.sddmm(edges.graph(path), a, b).double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (8,), (40,)])
def test_edge_softmax_and_segment_sum(path, random, shape):
    for edges in (bipartite(), hubs()):
        graph, values = edges.graph(path), random(edges.num_edges, *shape) * 4
        want = reference.edge_softmax(edges.row, values.double(), edges.num_rows)
        torch.testing.assert_close(tcg.edge_softmax(graph, values).double(), want, rtol=2e-5, atol=1e-7)
        total = reference.segment_sum(edges.row, values.double(), edges.num_rows)
        scale = reference.segment_sum(edges.row, values.double().abs(), edges.num_rows)
        degree = torch.bincount(edges.row, minlength=edges.num_rows).view(-1, *[1] * len(shape))
        bound = (2.0**-20 + 2.0**-22 * degree.sqrt()) * scale
        assert ((tcg.segment(graph, values).double() - total).abs() <= bound).all()


# --- gradients ---


@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_of_spmm_on_a_directed_graph(path, random, weighted):
    edges = bipartite()
    graph, g = edges.graph(path), random(edges.num_rows, 24)
    x = random(edges.num_cols, 24).requires_grad_()
    weight = random(edges.num_edges).requires_grad_() if weighted else None
    tcg.spmm(graph, x, weight, precision="ieee").backward(g)
    back = Edges(edges.col, edges.row, edges.num_cols, edges.num_rows)
    check_sum(x.grad, back, g, None if weight is None else weight.detach())
    if weight is not None:
        want = reference.sddmm(edges.row, edges.col, g.double(), x.detach().double())
        torch.testing.assert_close(weight.grad.double(), want, rtol=1e-5, atol=1e-5)


def test_gradcheck_in_float64(path, random):
    edges = bipartite(11, 9, 30)
    graph = edges.graph(path)
    x, weight = random(9, 2, 3).double().requires_grad_(), random(30, 2).double().requires_grad_()
    a, logits = random(11, 2, 3).double().requires_grad_(), random(30, 2).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: tcg.spmm(graph, x, w), (x, weight))
    assert torch.autograd.gradcheck(lambda a, b: tcg.sddmm(graph, a, b), (a, x))
    assert torch.autograd.gradcheck(lambda s: tcg.edge_softmax(graph, s), (logits,))
    assert torch.autograd.gradcheck(lambda x, w: tcg.spmm(graph, x, w, reduce="max"), (x, weight))
    assert torch.autograd.gradgradcheck(lambda x, w: tcg.spmm(graph, x, w), (x, weight))


@pytest.mark.parametrize("mean", [2, 20, 70])
@pytest.mark.parametrize("features", [3, 16, 32, 64, 100, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_are_right_at_every_tiling(random, mean, features, dtype):
    """Short and long rows, one that is cut, few lanes and many; weights by edge and in storage order."""
    few = bipartite(1_500, 1_500, 1_500 * mean)
    hub = torch.arange(1_500, device="cuda")
    edges = Edges(torch.cat([few.row, hub * 0 + 9]), torch.cat([few.col, hub]), 1_500, 1_500)
    graph = edges.graph("cuda")
    x, weight = random(1_500, features, dtype=dtype), random(edges.num_edges, dtype=dtype)
    check_sum(tcg.spmm(graph, x), edges, x, None)
    check_sum(tcg.spmm(graph, x, weight), edges, x, weight)
    check_sum(tcg.spmm(graph.with_weight(weight).in_storage_order(), x), edges, x, weight)


def test_a_thread_that_never_called_cuda_can_launch(random):
    """Autograd's own thread may meet one of these kernels first, compiled and loaded by another."""
    edges = bipartite()
    graph = edges.graph("cuda")
    x = random(edges.num_cols, 32)
    want, got = tcg.spmm(graph, x), []
    out = torch.empty_like(want)
    from torch_tcgnn.kernels.cuda import csr_spmm

    thread = threading.Thread(target=lambda: got.append(csr_spmm.spmm(graph.prepared(x.dtype), x, None, out)))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert got == [None]
    assert torch.equal(out, want)


# --- what must not happen ---


@pytest.mark.parametrize("features", [1, 7, 32, 129])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_memory_beside_the_results_stays_untouched(path, random, guarded, features, dtype):
    for edges in (bipartite(), hubs(1501)):
        graph = edges.graph(path)
        x, weight = random(edges.num_cols, features, dtype=dtype), random(edges.num_edges, dtype=dtype)
        outputs = [
            tcg.spmm(graph, x), tcg.spmm(graph, x, weight), tcg.spmm(graph, x, weight, reduce="max"),
            tcg.sddmm(graph, random(edges.num_rows, features, dtype=dtype), x), tcg.segment(graph, weight),
            tcg.edge_softmax(graph, weight), tcg.edge_softmax(graph, random(edges.num_edges, 3, dtype=dtype)),
        ]  # fmt: skip
        assert all(out.isfinite().all() for out in outputs)  # each element was written
    guarded()


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("weighted", [False, True])
def test_nan_and_inf_reach_only_their_neighbours(path, random, dtype, weighted):
    edges = bipartite(203, 187, 900)
    graph = edges.graph(path)
    x = random(edges.num_cols, 24, dtype=dtype)
    x[0, :7], x[5, 7:] = float("nan"), float("-inf")
    weight = random(edges.num_edges).abs() + 0.1 if weighted else None
    for precision in ("ieee", "tf32"):
        out = tcg.spmm(graph, x, weight, precision=precision)
        want = reference.spmm(edges.row, edges.col, x.float(), weight, edges.num_rows)
        assert torch.equal(out.isnan(), want.isnan())
        assert torch.equal(out.isneginf(), want.isneginf())
        assert 0 < out.isfinite().sum() < out.numel()


def test_a_weight_that_is_not_finite_stays_in_its_row(path, random):
    edges = bipartite()
    weight = random(edges.num_edges)
    weight[3], weight[40] = float("nan"), float("inf")
    out = tcg.spmm(edges.graph(path), random(edges.num_cols, 16), weight)
    hit = torch.zeros(edges.num_rows, dtype=torch.bool, device="cuda")
    hit[edges.row[[3, 40]]] = True
    assert torch.equal(~out.isfinite().all(1), hit)


@pytest.mark.parametrize("num_rows, num_cols", [(0, 0), (1, 1), (5, 3), (63001, 7)])
def test_graphs_without_edges_give_zeros(path, random, num_rows, num_cols):
    none = torch.empty(0, dtype=torch.int64, device="cuda")
    graph = Edges(none, none, num_rows, num_cols).graph(path)
    x = random(num_cols, 6)
    for reduce in ("sum", "mean", "max", "min"):
        assert torch.equal(tcg.spmm(graph, x, reduce=reduce), x.new_zeros(num_rows, 6))
    assert tcg.sddmm(graph, random(num_rows, 6), x).shape == (0,)
    assert tcg.edge_softmax(graph, random(0, 2)).shape == (0, 2)


def test_one_edge_among_empty_rows_and_no_features(path, random):
    edges = Edges(torch.tensor([62_999], device="cuda"), torch.tensor([2], device="cuda"), 63_001, 4)
    graph, x = edges.graph(path), random(4, 9)
    out = tcg.spmm(graph, x)
    torch.testing.assert_close(out[62_999], x[2], rtol=2**-20, atol=0)
    assert int(out.count_nonzero()) == 9
    assert tcg.spmm(graph, x[:, :0]).shape == (63_001, 0)


def test_a_batch_gives_each_graph_its_own_bits(path, random):
    if path == "tc":
        pytest.skip("windows of 8 rows cross the graphs of a batch")
    small, large = bipartite(), hubs(1501)
    both = Edges(
        torch.cat([small.row, large.row + small.num_rows]), torch.cat([small.col, large.col + small.num_cols]),
        small.num_rows + large.num_rows, small.num_cols + large.num_cols,
    )  # fmt: skip
    x = random(both.num_cols, 24)
    apart = [tcg.spmm(small.graph("cuda"), x[: small.num_cols]), tcg.spmm(large.graph("cuda"), x[small.num_cols :])]
    assert torch.equal(tcg.spmm(both.graph("cuda"), x), torch.cat(apart))


def test_offsets_beyond_two_to_the_31(path):
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GB of free GPU memory")
    nodes, features = (1 << 22) + 5, 513
    index = torch.tensor([nodes - 1, nodes - 2, 3], device="cuda")
    graph = Edges(index, index.flip(0), nodes, nodes).graph(path)
    x = torch.zeros(nodes, features, dtype=torch.float16, device="cuda")
    x[3], x[nodes - 2], x[nodes - 1] = 1.0, 2.0, 3.0
    out = tcg.spmm(graph, x)
    assert [float(out[i].sum()) / features for i in index.tolist()] == [1.0, 2.0, 3.0]
    assert int(out.count_nonzero()) == 3 * features


# --- streams, graphs, choice ---


def test_another_stream_and_a_captured_graph(path, random):
    edges = hubs(1501)
    graph, x, weight = edges.graph(path), random(edges.num_cols, 32), random(edges.num_edges)

    def step() -> tuple[Tensor, ...]:
        logits = tcg.sddmm(graph, x, x)
        return tcg.spmm(graph, x, weight), tcg.edge_softmax(graph, logits), tcg.spmm(graph, x, reduce="max")

    step()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        replayed = step()
    x.copy_(random(edges.num_cols, 32))
    captured.replay()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        beside = step()
    torch.cuda.synchronize()
    for a, b, c in zip(step(), beside, replayed):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


@pytest.mark.parametrize(
    "what",
    [
        lambda graph, logits: tcg.edge_softmax(graph, logits),
        lambda graph, logits: graph.blocks,
        lambda graph, logits: graph.t(),
        lambda graph, logits: tcg.cache.default.graph(torch.zeros(2, 3, dtype=torch.int64, device="cuda"), 3),
    ],
    ids=["work list", "blocks", "transpose", "cache"],
)
def test_nothing_is_built_inside_a_capture(random, what):
    edges = bipartite()
    graph, logits = edges.graph("tc"), random(edges.num_edges)
    tcg.edge_softmax(edges.graph("tc"), logits)  # compiled; the graph above has built nothing
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="run the operator once"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        what(graph, logits)
    torch.cuda.synchronize()
    total = tcg.segment(graph, tcg.edge_softmax(graph, logits))
    torch.testing.assert_close(total[total > 0], torch.ones_like(total[total > 0]))
    what(graph, logits)


def test_explain_says_which_kernel_runs(path, random):
    edges = bipartite()
    adjacency = edges.graph(path).prepared(torch.float32)
    kernel = choose.explain_spmm(adjacency, random(edges.num_cols, 8), None).kernel
    language = "cuda" if choose.nvrtc.unavailable() is None else "triton"
    assert kernel == language + ("_rows" if path == "cuda" else "_blocks")
