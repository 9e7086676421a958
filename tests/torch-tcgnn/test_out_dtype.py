"""`spmm(..., out_dtype=torch.float32)` of float16 and bfloat16 features: sums and gradients that nothing rounded."""

from __future__ import annotations

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn import reference
from torch_tcgnn.kernels import choose

HALVES = [torch.float16, torch.bfloat16]
REDUCES = ["sum", "mean", "max", "min"]
NODES, EDGES = 40, 900
EDGE_INDEX = torch.randint(NODES, (2, EDGES), generator=torch.Generator().manual_seed(0))
GRAPH = tcg.TCGraph.from_edge_index(EDGE_INDEX, NODES)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PLACES = [("cpu", "auto"), *(pytest.param("cuda", path, marks=pytest.mark.gpu) for path in ("tc", "cuda"))]


def values(*shape: int, dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", REDUCES)
def test_the_result_is_that_of_the_same_values_in_float32(reduce, weighted, dtype):
    x, w = values(NODES, 5, dtype=dtype), values(EDGES, dtype=dtype, seed=2) if weighted else None
    out = tcg.spmm(GRAPH, x, w, reduce=reduce, out_dtype=torch.float32)
    expected = tcg.spmm(GRAPH, x.float(), None if w is None else w.float(), reduce=reduce)
    if weighted and reduce in ("max", "min"):
        expected = expected.to(dtype).float()  # messages of an extremum are compared in the type of the features
    assert out.dtype == torch.float32
    assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("reduce", REDUCES)
def test_naming_the_type_of_the_features_changes_nothing(reduce, dtype):
    x = values(NODES, 5, dtype=dtype)
    same = tcg.spmm(GRAPH, x, reduce=reduce, out_dtype=dtype)
    assert same.dtype == dtype
    assert torch.equal(same, tcg.spmm(GRAPH, x, reduce=reduce))


@pytest.mark.parametrize("device, path", PLACES)
@pytest.mark.parametrize("features", [7, 64])
def test_integer_sums_beyond_what_float16_holds_are_exact(device, path, features):
    """Odd values below 2¹¹, sums up to 2¹⁹: float32 holds each, float16 none above 2¹¹."""
    target, source = torch.arange(16).repeat_interleave(300), torch.arange(300).repeat(16)
    g = tcg.TCGraph.from_edge_index(torch.stack([source, target]), (300, 16), path=path).to(device)
    x = torch.randint(1000, (300, features), generator=torch.Generator().manual_seed(3)) * 2 + 1
    out = tcg.spmm(g, x.half().to(device), out_dtype=torch.float32)
    assert torch.equal(out.cpu().long(), x.sum(0).expand(16, -1))
    assert (x.sum(0) > 65504).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("weight", [None, (), (3,)])
@pytest.mark.parametrize("features", [8, 9])
def test_gradients_come_in_the_types_of_the_inputs_and_are_summed_in_float32(device, dtype, weight, features):
    shape = (NODES, features) if weight in (None, ()) else (NODES, 3, features)
    half = [values(*shape, dtype=dtype)]
    if weight is not None:
        half.append(values(EDGES, *weight, dtype=dtype, seed=2))
    half = [t.to(device).requires_grad_() for t in half]
    wide = [t.detach().float().requires_grad_() for t in half]
    seed = values(*shape, dtype=torch.float32, seed=3).to(device)
    g = GRAPH.to(device)
    out = tcg.spmm(g, *half, out_dtype=torch.float32)
    grads = torch.autograd.grad(out, half, seed)
    expected = torch.autograd.grad(tcg.spmm(g, *wide), wide, seed)
    for got, want in zip(grads, expected, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got, want.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-5)


def test_second_derivatives_are_those_of_float32():
    def second(dtype: torch.dtype) -> list[torch.Tensor]:
        x, w = (t.to(dtype).requires_grad_() for t in (values(NODES, 3, dtype=torch.float16), half_weight))
        out = tcg.spmm(GRAPH, x, w, out_dtype=torch.float32)
        grads = torch.autograd.grad(out.square().sum(), [x, w], create_graph=True)
        loss = sum(g.float().square().sum() for g in grads)
        return [g.float() for g in torch.autograd.grad(loss, [x, w])]

    half_weight = values(EDGES, dtype=torch.float16, seed=2) / 16
    for got, want in zip(second(torch.float16), second(torch.float32), strict=True):
        torch.testing.assert_close(got, want, rtol=4e-3, atol=4e-3 * want.abs().max().item())


def test_a_float16_mean_does_not_overflow_where_its_sum_would():
    g = tcg.TCGraph.from_edge_index(torch.stack([torch.arange(200), torch.zeros(200, dtype=torch.int64)]), 200)
    x = torch.full((200, 3), 1000.0, dtype=torch.float16, requires_grad=True)
    out = tcg.spmm(g, x, reduce="mean")
    assert out[0].tolist() == [1000.0] * 3
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad, torch.full_like(grad, 1 / 200))


@pytest.mark.parametrize("dynamic", [False, None])
def test_compiled_whole(dynamic):
    x = values(NODES, 5, dtype=torch.float16)
    compiled = torch.compile(
        lambda g, x: tcg.spmm(g, x, out_dtype=torch.float32), fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    assert torch.equal(compiled(GRAPH, x), tcg.spmm(GRAPH, x, out_dtype=torch.float32))


@pytest.mark.parametrize(
    "dtype, out_dtype, error",
    [
        (torch.float32, torch.float16, ValueError),
        (torch.float32, torch.float64, ValueError),
        (torch.float64, torch.float32, ValueError),
        (torch.float16, torch.bfloat16, ValueError),
        (torch.bfloat16, torch.float64, ValueError),
        (torch.float16, torch.int32, ValueError),
        (torch.float16, "float32", TypeError),
    ],
)
def test_other_types_are_refused_by_name(dtype, out_dtype, error):
    with pytest.raises(error, match="out_dtype must be") as raised:
        tcg.spmm(GRAPH, values(NODES, 2, dtype=dtype), out_dtype=out_dtype)
    assert str(out_dtype) in str(raised.value)
    if error is ValueError:
        assert str(dtype) in str(raised.value)


ROWS, COLS = 203, 187


def hub_edges() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns: a row that is cut in pieces, a window that is split, duplicates, empty rows."""
    rng = torch.Generator().manual_seed(4)
    row = torch.cat([torch.full((3000,), 9), torch.randint(0, ROWS - 20, (2500,), generator=rng)])
    return row, torch.randint(0, COLS, row.shape, generator=rng)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:torch_tcgnn. kernels in CUDA C.. cannot be compiled")
@pytest.mark.parametrize("path", ["tc", "cuda", "auto"])
@pytest.mark.parametrize("language", ["cuda", "triton"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("weight", [None, (), (2,)])
@pytest.mark.parametrize("features, offset", [(1, 0), (8, 0), (16, 1), (17, 0), (64, 0), (129, 0)])
def test_every_kernel_on_a_gpu_leaves_its_float32_sums_alone(
    path, language, dtype, weight, features, offset, monkeypatch
):
    """``offset``: elements between a multiple of 16 bytes and the start of ``x``."""
    if language == "triton":
        monkeypatch.setattr(choose.nvrtc, "unavailable", lambda: "NVRTC is hidden by this test")
    elif missing := choose.nvrtc.unavailable():
        pytest.skip(missing)
    row, col = hub_edges()
    shape = (COLS, features) if weight != (2,) else (COLS, 2, features)
    numbers = values(offset + torch.Size(shape).numel(), dtype=dtype).cuda()
    x = numbers[offset:].view(shape)
    w = None if weight is None else values(row.shape[0], *weight, dtype=dtype, seed=2).cuda()
    g = tcg.TCGraph.from_edge_index(torch.stack([col, row]).cuda(), (COLS, ROWS), path=path)
    out = tcg.spmm(g, x, w, out_dtype=torch.float32)
    row, col = row.cuda(), col.cuda()
    exact = reference.spmm(row, col, x.double(), None if w is None else w.double(), ROWS)
    size = reference.spmm(row, col, x.double().abs(), None if w is None else w.double().abs(), ROWS)
    degree = torch.bincount(row, minlength=ROWS).double().view(-1, *[1] * (x.dim() - 1))
    bound = (2.0**-20 + 2.0**-22 * degree.sqrt()) * size
    if w is not None:  # tensor cores round the sum of duplicates' weights
        bound += torch.finfo(dtype).eps / 2 * size
    assert out.dtype == torch.float32
    assert (out.double() - exact).abs().sub(bound).max() <= 0
