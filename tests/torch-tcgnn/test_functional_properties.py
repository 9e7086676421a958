"""Sums, means and extrema against dense float64 matrices, over graphs of every kind that hypothesis thinks of."""

import pytest
import torch
import torch_tcgnn as tcg
from torch import Tensor

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

HALF_ULP = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
SMALLEST = {torch.float16: 2.0**-24}


@st.composite
def problems(draw) -> tuple[Tensor, tuple[int, int], Tensor, Tensor | None]:
    """Edges (directed, bipartite, doubled, none), sizes, features ``[K(, H), F]``, weights ``[E(, H)]`` or none."""
    sources, targets = draw(st.integers(0, 30)), draw(st.integers(0, 30))
    pair = st.tuples(st.integers(0, max(sources - 1, 0)), st.integers(0, max(targets - 1, 0)))
    pairs = draw(st.lists(pair, max_size=80)) if sources and targets else []
    edge_index = torch.tensor(pairs * draw(st.integers(1, 2)), dtype=torch.int64).reshape(-1, 2).t()
    heads = draw(st.sampled_from([(), (1,), (3,)]))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from(list(HALF_ULP)))
    x = torch.randn(sources, *heads, draw(st.integers(0, 9)), generator=rng).to(dtype)
    weighted = draw(st.sampled_from(["no", "one an edge", "one a head"] if heads else ["no", "one an edge"]))
    shape = (edge_index.shape[1], *(heads if weighted == "one a head" else ()))
    return edge_index, (sources, targets), x, None if weighted == "no" else torch.randn(shape, generator=rng).to(dtype)


def dense(edge_index: Tensor, sizes: tuple[int, int], weight: Tensor | None, heads: int) -> Tensor:
    """``[H, M, K]`` float64; duplicates add up."""
    weight = torch.ones(edge_index.shape[1], dtype=torch.float64) if weight is None else weight.double()
    per_head = weight.expand(heads, -1) if weight.dim() == 1 else weight.t()
    matrix = torch.zeros(heads, sizes[1], sizes[0], dtype=torch.float64)
    for one, values in zip(matrix, per_head):
        one.index_put_((edge_index[1], edge_index[0]), values, accumulate=True)
    return matrix


@settings(max_examples=150)
@given(problems(), st.sampled_from(["sum", "mean"]))
def test_sums_and_means_equal_the_dense_product(problem, reduce):
    edge_index, sizes, x, weight = problem
    out = tcg.spmm(tcg.TCGraph.from_edge_index(edge_index, sizes), x, weight, reduce=reduce)
    heads = x.shape[1] if x.dim() == 3 else 1
    by_head = x.double().view(x.shape[0], heads, x.shape[-1]).transpose(0, 1)
    magnitude = None if weight is None else weight.abs()
    exact = dense(edge_index, sizes, weight, heads) @ by_head
    scale = dense(edge_index, sizes, magnitude, heads) @ by_head.abs()
    degree = torch.bincount(edge_index[1], minlength=sizes[1]).double().view(1, -1, 1)
    bound = (2**-20 + 2**-22 * degree.sqrt()) * scale
    if reduce == "mean":
        exact, bound = exact / degree.clamp(min=1), bound / degree.clamp(min=1)
    if x.dtype == torch.float64:
        bound = bound * 2**-29
    bound = bound + HALF_ULP[x.dtype] * (exact.abs() + bound) + SMALLEST.get(x.dtype, 0.0)
    got = out.double().view(sizes[1], heads, x.shape[-1]).transpose(0, 1)
    assert (out.shape, out.dtype) == ((sizes[1], *x.shape[1:]), x.dtype)
    assert ((got - exact).abs() <= bound).all()


@settings(max_examples=100)
@given(problems(), st.booleans())
def test_extrema_equal_those_of_the_messages(problem, largest):
    """Messages are rounded to the type of the features; nothing else is."""
    edge_index, sizes, x, weight = problem
    out = tcg.spmm(tcg.TCGraph.from_edge_index(edge_index, sizes), x, weight, reduce="max" if largest else "min")
    message = x[edge_index[0]]
    if weight is not None:
        message = message * weight.view(*weight.shape, *[1] * (x.dim() - weight.dim()))
    expected = torch.zeros_like(out)
    for target in edge_index[1].unique().tolist():
        found = message[edge_index[1] == target]
        expected[target] = found.amax(0) if largest else found.amin(0)
    assert torch.equal(out, expected)
