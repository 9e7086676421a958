"""Aggregation operators against dense float64 matrices: every reduce, weight shape, feature shape and dtype."""

import os
import subprocess
import sys

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn import reference

SOURCES, TARGETS, EDGES = 23, 19, 110  # duplicates certain, some targets without edges
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
ROUNDING = {torch.float64: 0.0, torch.float32: 0.0, torch.float16: 2**-11, torch.bfloat16: 2**-8}
# weights: shape after the edges; x: shape after the sources
SHAPES = {
    "2-D": (None, (5,)),
    "2-D weighted": ((), (5,)),
    "3-D": (None, (3, 5)),
    "3-D weighted": ((), (3, 5)),
    "3-D weight a head": ((3,), (3, 5)),
}


def edge_list(sources: int = SOURCES, targets: int = TARGETS, edges: int = EDGES, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    target = torch.randint(targets, (edges,), generator=rng)
    target[target == 4] = 5  # target 4 has no edges
    return torch.stack([torch.randint(sources, (edges,), generator=rng), target])


def values(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def by_dense(edge_index, x, weight, targets, matrix=reference.to_dense):
    """``A @ x`` in float64, one dense matrix a head."""
    source, target = edge_index.long()
    x = x.double()
    heads = [x] if x.dim() == 2 else list(x.unbind(1))
    out = []
    for head, features in enumerate(heads):
        w = weight[:, head] if weight is not None and weight.dim() == 2 else weight
        out.append(matrix(target, source, w, targets, x.shape[0]) @ features)
    return out[0] if x.dim() == 2 else torch.stack(out, 1)


def magnitude(edge_index, x, weight, targets):
    """``|A| · |x|``: what the error bounds are relative to."""
    weight = None if weight is None else weight.double().abs()
    return by_dense(edge_index, x.double().abs(), weight, targets)


def assert_within(out, exact, scale, degree):
    """Float32 accumulation: (2⁻²⁰ + 2⁻²² √degree) · |A||x|, and one rounding to the output type."""
    assert out.shape == exact.shape
    bound = (2**-20 + 2**-22 * degree.double().sqrt().view(-1, *[1] * (out.dim() - 1))) * scale
    bound = bound * 2**-20 if out.dtype == torch.float64 else bound
    bound = bound + ROUNDING[out.dtype] * (exact.abs() + bound) + 1e-300
    excess = (out.double() - exact).abs() - bound
    assert bool((excess <= 0).all()), f"beyond the bound by {excess.max():.3g}"


def degrees(edge_index, targets):
    return torch.bincount(edge_index[1].long(), minlength=targets)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_sum_equals_the_dense_product(shape, dtype):
    weight, features = SHAPES[shape]
    edge_index = edge_list()
    x = values(SOURCES, *features, dtype=dtype)
    w = None if weight is None else values(EDGES, *weight, dtype=dtype, seed=2)
    y = tcg.spmm(tcg.TCGraph.from_edge_index(edge_index, (SOURCES, TARGETS)), x, w)
    assert y.dtype == dtype
    exact, scale = by_dense(edge_index, x, w, TARGETS), magnitude(edge_index, x, w, TARGETS)
    assert_within(y, exact, scale, degrees(edge_index, TARGETS))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_mean_divides_by_the_number_of_edges(shape, dtype):
    weight, features = SHAPES[shape]
    edge_index = edge_list()
    x = values(SOURCES, *features, dtype=dtype)
    w = None if weight is None else values(EDGES, *weight, dtype=dtype, seed=2)
    y = tcg.spmm(tcg.TCGraph.from_edge_index(edge_index, (SOURCES, TARGETS)), x, w, reduce="mean")
    degree = degrees(edge_index, TARGETS)
    divide = degree.clamp(min=1).view(-1, *[1] * (y.dim() - 1))
    exact, scale = by_dense(edge_index, x, w, TARGETS) / divide, magnitude(edge_index, x, w, TARGETS) / divide
    assert_within(y, exact, scale + 2 * ROUNDING[dtype] * 2**20 * exact.abs(), degree)
    assert not y[4].any()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("shape", SHAPES)
def test_extremum_is_that_of_the_messages(shape, reduce, dtype):
    weight, features = SHAPES[shape]
    edge_index = edge_list()
    x = values(SOURCES, *features, dtype=dtype)
    w = None if weight is None else values(EDGES, *weight, dtype=dtype, seed=2)
    y = tcg.spmm(tcg.TCGraph.from_edge_index(edge_index, (SOURCES, TARGETS)), x, w, reduce=reduce)
    expected = torch.zeros(TARGETS, *features, dtype=dtype)
    for target in range(TARGETS):
        edges = (edge_index[1] == target).nonzero().view(-1)
        if len(edges):
            message = x[edge_index[0, edges]]
            if w is not None:
                message = message * w[edges].view(*w[edges].shape, *[1] * (x.dim() - w.dim()))
            expected[target] = message.amax(0) if reduce == "max" else message.amin(0)
    torch.testing.assert_close(y, expected, rtol=0, atol=0)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_weights_of_the_graph_are_used_when_none_are_given(reduce):
    edge_index, x, w = edge_list(), values(SOURCES, 4), values(EDGES, seed=2)
    sizes = (SOURCES, TARGETS)
    weighted = tcg.spmm(tcg.TCGraph.from_edge_index(edge_index, sizes, w), x, reduce=reduce)
    assert torch.equal(weighted, tcg.spmm(tcg.TCGraph.from_edge_index(edge_index, sizes), x, w, reduce=reduce))


def test_weights_of_another_float_type_keep_the_type_of_x():
    edge_index, x, w = edge_list(), values(SOURCES, 4, dtype=torch.float32), values(EDGES, seed=2)
    g = tcg.TCGraph.from_edge_index(edge_index, (SOURCES, TARGETS))
    x.requires_grad_(), w.requires_grad_()
    y = tcg.spmm(g, x, w)
    y.sum().backward()
    assert (y.dtype, x.grad.dtype, w.grad.dtype) == (torch.float32, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(6,), (3, 6)], ids=["2-D", "3-D"])
def test_sddmm_samples_the_dense_product(shape, dtype):
    edge_index = edge_list()
    a, b = values(TARGETS, *shape, dtype=dtype), values(SOURCES, *shape, dtype=dtype, seed=2)
    out = tcg.sddmm(tcg.TCGraph.from_edge_index(edge_index, (SOURCES, TARGETS)), a, b, scale=0.5)
    product = torch.einsum("i...d,j...d->ij...", a.double(), b.double()) / 2
    scale = torch.einsum("i...d,j...d->ij...", a.double().abs(), b.double().abs()) / 2
    at = (edge_index[1], edge_index[0])
    assert out.dtype == dtype
    assert_within(out, product[at], scale[at], torch.full((EDGES,), shape[-1]))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads", [(), (3,)], ids=["[E]", "[E, H]"])
def test_edge_softmax_is_the_softmax_of_each_targets_edges(heads, dtype):
    edge_index, logits = edge_list(), 3 * values(EDGES, *heads, dtype=dtype)
    out = tcg.edge_softmax(tcg.TCGraph.from_edge_index(edge_index, (SOURCES, TARGETS)), logits)
    expected = torch.zeros(EDGES, *heads, dtype=torch.float64)
    for target in range(TARGETS):
        edges = edge_index[1] == target
        expected[edges] = logits[edges].double().softmax(0)
    tolerance = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


def test_edge_softmax_of_large_logits_does_not_overflow():
    g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1, 2], [0, 0, 1]]), 3)
    out = tcg.edge_softmax(g, torch.tensor([1e30, 1e30, -1e30]))
    assert out.tolist() == [0.5, 0.5, 1.0]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("trailing", [(), (4,), (3, 2)])
def test_segment_reduces_the_edges_of_each_target(trailing, reduce, dtype):
    edge_index, e = edge_list(), values(EDGES, *trailing, dtype=dtype)
    out = tcg.segment(tcg.TCGraph.from_edge_index(edge_index, (SOURCES, TARGETS)), e, reduce)
    one = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}[reduce]
    expected = torch.zeros(TARGETS, *trailing, dtype=torch.float64)
    for target in range(TARGETS):
        edges = edge_index[1] == target
        if edges.any():
            expected[target] = one(e[edges].double(), 0)
    tolerance = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.bool])
def test_gather_reads_the_ends_of_each_edge(dtype):
    edge_index = edge_list()
    g = tcg.TCGraph.from_edge_index(edge_index, (SOURCES, TARGETS))
    at_target, at_source = (10 * values(TARGETS, 3)).to(dtype), (10 * values(SOURCES, 2, 2)).to(dtype)
    assert torch.equal(tcg.gather_dst(g, at_target), at_target[edge_index[1]])
    assert torch.equal(tcg.gather_src(g, at_source), at_source[edge_index[0]])


def calls(g, x, w):
    """One result of every operator."""
    return {
        **{f"spmm {r}": tcg.spmm(g, x, w, reduce=r) for r in ("sum", "mean", "max", "min")},
        "sddmm": tcg.sddmm(g, x, x),
        "edge_softmax": tcg.edge_softmax(g, w),
        **{f"segment {r}": tcg.segment(g, w, r) for r in ("sum", "mean", "max", "min")},
        "gather_src": tcg.gather_src(g, x),
        "gather_dst": tcg.gather_dst(g, x),
    }


def test_int32_and_int64_edges_give_the_same_bits():
    edge_index, x, w = edge_list(20, 20), values(20, 5), values(EDGES, seed=2)
    wide, narrow = (calls(tcg.TCGraph.from_edge_index(e, 20), x, w) for e in (edge_index, edge_index.int()))
    assert all(torch.equal(wide[name], narrow[name]) for name in wide)


def test_two_runs_give_the_same_bits():
    edge_index, x, w = edge_list(20, 20), values(20, 5, dtype=torch.float32), values(EDGES, seed=2).float()
    first, second = (calls(tcg.TCGraph.from_edge_index(edge_index, 20), x, w) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_permuting_the_edges_permutes_edge_results_and_leaves_rows_alone():
    pairs = torch.randperm(400, generator=torch.Generator().manual_seed(3))[:EDGES]  # distinct edges: sums keep order
    edge_index, x, w = torch.stack([pairs // 20, pairs % 20]), values(20, 5), values(EDGES, seed=2)
    order = torch.randperm(EDGES, generator=torch.Generator().manual_seed(4))
    plain = calls(tcg.TCGraph.from_edge_index(edge_index, 20), x, w)
    permuted = calls(tcg.TCGraph.from_edge_index(edge_index[:, order], 20), x, w[order])
    for name, expected in plain.items():
        if name in ("sddmm", "edge_softmax", "gather_src", "gather_dst"):
            expected = expected[order]
        if name.startswith("segment"):
            torch.testing.assert_close(permuted[name], expected, rtol=1e-14, atol=1e-14)
        else:
            assert torch.equal(permuted[name], expected), name


def test_a_batch_equals_its_graphs_one_by_one():
    """Block-diagonal batches: not a bit of one graph depends on another."""
    lists = [edge_list(n, n, 4 * n, seed=n) for n in (6, 9, 17)]
    offsets = [0, 6, 15]
    batch = torch.cat([e + o for e, o in zip(lists, offsets)], dim=1)
    x, w = values(32, 5, dtype=torch.float32), values(batch.shape[1], dtype=torch.float32, seed=2)
    together = calls(tcg.TCGraph.from_edge_index(batch, 32), x, w)
    parts = []
    for edge_index, first in zip(lists, offsets):
        start = sum(e.shape[1] for e, o in zip(lists, offsets) if o < first)
        n, e = edge_index.shape[1] // 4, edge_index.shape[1]
        parts.append(calls(tcg.TCGraph.from_edge_index(edge_index, n), x[first : first + n], w[start : start + e]))
    for name, result in together.items():
        assert torch.equal(result, torch.cat([part[name] for part in parts])), name


@pytest.mark.parametrize("switch", ["allow_tf32", "fp32_precision"])
def test_either_switch_of_pytorch_allows_tf32(switch):
    value = {"allow_tf32": True, "fp32_precision": "tf32"}[switch]
    script = (
        "import torch; from torch_tcgnn.functional.arguments import tf32_allowed\n"
        "assert not tf32_allowed()\n"
        f"torch.backends.cuda.matmul.{switch} = {value!r}\n"
        "assert tf32_allowed()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
