"""Both paths in one product on a GPU: every second window on tensor cores, the other rows on CUDA cores."""

from __future__ import annotations

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
NODES, EDGES = 1_203, 20_000
HALF_ULP = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


@pytest.fixture(params=["cuda", "triton"])
def language(request, monkeypatch) -> str:
    """Of the kernels; which windows take which path is fixed, not predicted."""
    if request.param == "triton":
        monkeypatch.setattr(choose.nvrtc, "unavailable", lambda: "NVRTC is hidden by this test")
    elif missing := choose.nvrtc.unavailable():
        pytest.skip(missing)
    monkeypatch.setattr(
        "torch_tcgnn.views.prefer_blocks_by_window",
        lambda entries, *_: torch.arange(len(entries), device=entries.device) % 2 == 0,
    )
    monkeypatch.setattr(choose, "predict_us", lambda *_, **how: {"mixed": 1.0, "cuda": 2.0})
    return request.param


@pytest.fixture
def edges() -> Tensor:
    """Directed, unsorted, duplicates, empty rows, and a long row in a window of each path."""
    rng = torch.Generator("cuda").manual_seed(0)
    edge_index = torch.randint(0, NODES - 50, (2, EDGES), generator=rng, device="cuda")
    edge_index[1, :3_000], edge_index[1, 3_000:6_000] = 3, 11
    return edge_index


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    rng = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=rng, device="cuda").to(dtype)


def check_sum(got: Tensor, row: Tensor, col: Tensor, x: Tensor, weight: Tensor | None) -> None:
    wide, factor = x.double(), None if weight is None else weight.double()
    want = reference.spmm(row, col, wide, factor, NODES)
    scale = reference.spmm(row, col, wide.abs(), None if factor is None else factor.abs(), NODES)
    degree = torch.bincount(row, minlength=NODES).double().view(-1, 1)
    bound = (2.0**-20 + 2.0**-22 * degree.sqrt()) * scale
    if x.dtype in HALF_ULP:
        bound += HALF_ULP[x.dtype] * (want.abs() + (0 if weight is None else scale)) + 2.0**-24
    assert ((got.double() - want).abs() <= bound).all()


@pytest.mark.parametrize("reorder", ["none", "degree"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 17, 128])
def test_every_row_is_written_once(language, edges, width, dtype, weighted, reorder, guarded):
    col, row = edges
    g = tcg.TCGraph.from_edge_index(edges, NODES, reorder=reorder)
    x, weight = randn(NODES, width, dtype=dtype), randn(EDGES, seed=1) if weighted else None
    adjacency = g.prepared(dtype)
    assert adjacency.rest is not None
    assert choose.explain_spmm(adjacency, x, weight).kernel == f"{language}_mixed"
    out = tcg.spmm(g, x, weight, precision="ieee")
    check_sum(out, row, col, x, weight)
    assert torch.equal(out, tcg.spmm(g, x, weight, precision="ieee"))
    guarded()


def test_gradients(language, edges):
    col, row = edges
    g = tcg.TCGraph.from_edge_index(edges, NODES)
    x, weight, upstream = randn(NODES, 24).requires_grad_(), randn(EDGES, seed=1).requires_grad_(), randn(NODES, 24)
    out = tcg.spmm(g, x, weight, precision="ieee")
    grad_x, grad_weight = torch.autograd.grad(out, [x, weight], upstream)
    check_sum(grad_x, col, row, upstream, weight.detach())
    want = reference.sddmm(row, col, upstream.double(), x.detach().double())
    torch.testing.assert_close(grad_weight.double(), want, rtol=1e-5, atol=1e-5)


def test_nan_and_inf_reach_only_their_neighbours(language, edges):
    col, row = edges
    x = randn(NODES, 24)
    x[0, :7], x[5, 7:] = float("nan"), float("-inf")
    out = tcg.spmm(tcg.TCGraph.from_edge_index(edges, NODES), x)
    want = reference.spmm(row, col, x, None, NODES)
    assert torch.equal(out.isnan(), want.isnan())
    assert torch.equal(out.isneginf(), want.isneginf())
    assert 0 < out.isfinite().sum() < out.numel()


def test_captured_in_a_cuda_graph(language, edges):
    g, x, weight = tcg.TCGraph.from_edge_index(edges, NODES), randn(NODES, 32), randn(EDGES, seed=1)
    for _ in range(2):
        tcg.spmm(g, x, weight)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        replayed = tcg.spmm(g, x, weight)
    x.copy_(randn(NODES, 32, seed=2))
    captured.replay()
    torch.cuda.synchronize()
    assert torch.equal(replayed, tcg.spmm(g, x, weight))
