"""Fused attention on a GPU against float64: sizes and tails, gradients, dropout, and a million edges at one target."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch_tcgnn as tcg
from torch import Tensor
from torch.testing import assert_close
from torch_tcgnn import reference

pytestmark = pytest.mark.gpu

FORMS = ["gat", "gatv2", "dot"]
WIDTHS = [(1, 1), (1, 7), (8, 8), (4, 16), (3, 17), (8, 32), (5, 41), (2, 64), (1, 121), (4, 128), (1, 433), (1, 1433)]
TOLERANCES = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 6e-3, torch.bfloat16: 4e-2}


def random_graph(sources: int, targets: int, edges: int, seed: int = 0) -> tcg.TCGraph:
    """Bipartite, skewed degrees, duplicates; one target in eleven has no edges."""
    rng = torch.Generator().manual_seed(seed)
    col = torch.randint(sources, (edges,), generator=rng)
    row = (torch.rand(edges, generator=rng) ** 3 * targets).long().clamp(max=targets - 1)
    row = torch.where(row % 11 == 5, row - 1, row)
    return tcg.TCGraph.from_edge_index(torch.stack([col, row]).cuda(), (sources, targets))


def hubs(nodes: int, hub: int = 5) -> tcg.TCGraph:
    """A node that every node is a source and a target of, and a ring: one row and one column of many pieces."""
    everyone = torch.arange(nodes)
    centre = torch.full_like(everyone, hub)
    edge_index = torch.stack([torch.cat([everyone, centre, everyone.roll(1)]), torch.cat([centre, everyone, everyone])])
    return tcg.TCGraph.from_edge_index(edge_index.cuda(), nodes)


def some_graph(kind: str) -> tcg.TCGraph:
    g = hubs(2_000) if kind == "hubs" else random_graph(301, 203, 3_001)
    assert g.prepared().plan.cut_rows.shape[0] > 0
    assert (g.t().prepared().plan.cut_rows.shape[0] > 0) == (kind == "hubs")
    return g


def operands(form: str, g: tcg.TCGraph, heads: int, width: int, edge: bool, dtype: torch.dtype) -> list[Tensor | None]:
    rng = torch.Generator("cuda").manual_seed(7)
    k, m, e, node = g.num_cols, g.num_rows, g.num_edges, (heads, width)
    shapes = {
        "gat": [(k, *node), (k, heads), (m, heads), (e, heads)],
        "gatv2": [(k, *node), (m, *node), node, (e, *node)],
        "dot": [(m, *node), (k, *node), (k, *node), (e, *node)],
    }[form]
    made = [torch.randn(s, generator=rng, device="cuda", dtype=torch.float64).to(dtype) for s in shapes]
    if form == "gatv2":
        made[2] = made[2] * width**-0.5
    return [*made[:3], made[3] if edge else None]


def attend(form: str, g: tcg.TCGraph, tensors: list[Tensor | None], **options: object) -> Tensor:
    a, b, c, edge = tensors
    if form == "gat":
        return tcg.gat_attention(g, a, b, c, edge_logit=edge, **options)
    return (tcg.gatv2_attention if form == "gatv2" else tcg.dot_attention)(g, a, b, c, edge=edge, **options)


def expected(form: str, g: tcg.TCGraph, tensors: list[Tensor | None], mask: Tensor | None = None) -> Tensor:
    """The reference, with the attention weights multiplied by ``mask``."""
    col, row = g.to_edge_index()
    a, b, c, edge = tensors
    if form == "gat":
        logits, value = reference.additive_logits(row, col, b, c, edge, 0.2), a
    elif form == "gatv2":
        logits, value = reference.gatv2_logits(row, col, a, b, c, edge, 0.2), a
    else:
        logits, value = reference.dot_logits(row, col, a, b, edge, a.shape[-1] ** -0.5), c
    weight = reference.edge_softmax(row, logits, g.num_rows)
    weight = weight if mask is None else weight * mask
    message = value[col] + edge if form == "dot" and edge is not None else value[col]
    return reference.segment_sum(row, message * weight.unsqueeze(-1), g.num_rows)


def leaves(tensors: list[Tensor | None], dtype: torch.dtype | None = None) -> list[Tensor | None]:
    return [None if t is None else t.detach().to(dtype or t.dtype).requires_grad_() for t in tensors]


def gradients(out: Tensor, tensors: list[Tensor | None]) -> list[Tensor]:
    upstream = torch.linspace(-1, 1, out.numel(), dtype=torch.float64, device="cuda").view_as(out).to(out.dtype)
    return list(torch.autograd.grad(out, [t for t in tensors if t is not None], upstream))


def close(got: Tensor, want: Tensor, tolerance: float) -> None:
    """Elementwise, relative to the element or the root mean square of all (at least 0.01: inputs are of order 1)."""
    size = want.square().mean().sqrt().clamp(min=1e-2).item() if want.numel() else 1.0
    assert_close(got.double(), want, rtol=tolerance, atol=tolerance * size * 4)


def check(form: str, g: tcg.TCGraph, heads: int, width: int, edge: bool, dtype: torch.dtype) -> None:
    ours = leaves(operands(form, g, heads, width, edge, dtype))
    theirs = leaves(ours, torch.float64)
    out, want = attend(form, g, ours), expected(form, g, theirs)
    assert out.dtype == dtype
    close(out, want, TOLERANCES[dtype])
    for got, truth in zip(gradients(out, ours), gradients(want, theirs), strict=True):
        close(got, truth, 4 * TOLERANCES[dtype])


@pytest.mark.parametrize("heads, width", WIDTHS)
@pytest.mark.parametrize("edge", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_sizes_and_tails(form: str, edge: bool, heads: int, width: int) -> None:
    check(form, random_graph(301, 203, 3_001), heads, width, edge, torch.float32)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("edge", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_dtypes(form: str, edge: bool, dtype: torch.dtype) -> None:
    check(form, random_graph(301, 203, 3_001), 3, 17, edge, dtype)


@pytest.mark.parametrize("form", FORMS)
def test_gradcheck(form: str) -> None:
    g = random_graph(5, 4, 12)
    tensors = leaves(operands(form, g, 2, 3, True, torch.float64))

    def call(*inputs: Tensor) -> Tensor:
        torch.manual_seed(1)
        return attend(form, g, list(inputs), dropout=0.3, training=True)

    assert torch.autograd.gradcheck(call, tensors)


@pytest.mark.parametrize("form", FORMS)
def test_dropout_is_the_same_in_output_weights_and_gradients(form: str) -> None:
    g = random_graph(301, 203, 3_001)
    ours = leaves(operands(form, g, 3, 8, True, torch.float64))
    theirs = leaves(ours)
    torch.manual_seed(3)
    out, alpha = attend(form, g, ours, dropout=0.4, training=True, return_attention=True)
    mask = (alpha != 0).double() / 0.6
    assert 0.5 < mask.count_nonzero() / mask.numel() < 0.7
    want = expected(form, g, theirs, mask)
    assert_close(out, want, rtol=1e-9, atol=1e-10)
    for got, truth in zip(gradients(out, ours), gradients(want, theirs), strict=True):
        close(got, truth, 1e-8)


@pytest.mark.parametrize("form", FORMS)
def test_gpu_equals_cpu_under_the_same_seed(form: str) -> None:
    g = random_graph(301, 203, 3_001)
    tensors = operands(form, g, 3, 8, True, torch.float64)
    name = {"gat": "additive"}.get(form, form)
    op = getattr(torch.ops.torch_tcgnn, f"{name}_attention")
    seed = torch.tensor([4_242_424_242_424_242])
    gpu = op(g.operands(), [], *tensors, 0.2, 0.5, seed.cuda())
    cpu = op(g.to("cpu").operands(), [], *(t.cpu() for t in tensors), 0.2, 0.5, seed)
    assert_close([t.cpu() for t in gpu], list(cpu), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", FORMS)
def test_hub_among_empty_targets(form: str) -> None:
    edges = 200_000
    col = torch.arange(edges).flip(0) % 5_000
    g = tcg.TCGraph.from_edge_index(torch.stack([col, torch.full_like(col, 77)]).cuda(), (5_000, 1_001))
    check(form, g, 2, 8, False, torch.float64)
    out = attend(form, g, operands(form, g, 2, 8, False, torch.float32))
    assert not out[78:].any()


def test_a_million_edges_at_one_target() -> None:
    edges = 1_000_000
    g = tcg.TCGraph.from_edge_index(torch.stack([torch.arange(edges), torch.zeros(edges).long()]).cuda(), (edges, 3))
    h, src, dst, _ = operands("gat", g, 1, 4, False, torch.float32)
    logits = torch.nn.functional.leaky_relu(src.double() + dst.double()[0], 0.2)
    want = (logits.softmax(0).unsqueeze(-1) * h.double()).sum(0)
    assert_close(attend("gat", g, [h, src, dst, None])[0].double(), want, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-8), (torch.float32, 2e-3)])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_at_a_target_and_a_source_of_a_million_edges(form: str, dtype: torch.dtype, tolerance: float) -> None:
    check_hub(form, hubs(1_000_000), 2, 4, False, dtype, tolerance)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-8), (torch.float32, 2e-3), (torch.float16, 2e-2)])
@pytest.mark.parametrize("form", FORMS)
def test_a_hub_whose_edges_have_operands(form: str, dtype: torch.dtype, tolerance: float) -> None:
    check_hub(form, hubs(200_000), 3, 9, True, dtype, tolerance)


def check_hub(
    form: str, g: tcg.TCGraph, heads: int, width: int, edge: bool, dtype: torch.dtype, tolerance: float
) -> None:
    ours = leaves(operands(form, g, heads, width, edge, dtype))
    theirs = leaves(ours, torch.float64)
    out, want = attend(form, g, ours), expected(form, g, theirs)
    close(out, want, tolerance)
    upstream = torch.randn(out.shape, generator=torch.Generator("cuda").manual_seed(1), device="cuda", dtype=dtype)
    got = torch.autograd.grad(out, [t for t in ours if t is not None], upstream)
    truth = torch.autograd.grad(want, [t for t in theirs if t is not None], upstream.double())
    for a, b in zip(got, truth, strict=True):
        close(a[5:6], b[5:6], tolerance)  # the hub's own, larger than the others'
        close(a, b, tolerance)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sources, targets, pairs", [(4, 3, 0), (0, 0, 0), (1, 1, 1)])
def test_odd_graphs(form: str, sources: int, targets: int, pairs: int) -> None:
    edge_index = torch.zeros(2, pairs, dtype=torch.int64, device="cuda")
    g = tcg.TCGraph.from_edge_index(edge_index, (sources, targets))
    check(form, g, 2, 3, True, torch.float32)


@pytest.mark.parametrize("kind", ["random", "hubs"])
@pytest.mark.parametrize("form", FORMS)
def test_two_runs_agree_bit_for_bit(form: str, kind: str) -> None:
    g = some_graph(kind)

    def run() -> list[Tensor]:
        tensors = leaves(operands(form, g, 8, 16, True, torch.float32))
        out = attend(form, g, tensors)
        return [out, *gradients(out, tensors)]

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_nothing_of_the_size_of_the_edges_is_kept(form: str) -> None:
    g = random_graph(4_000, 4_000, 2_000_000)
    g.t().operands()
    heads, width = 8, 16
    tensors = leaves(operands(form, g, heads, width, False, torch.float32))
    attend(form, g, tensors).sum().backward()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    attend(form, g, tensors).sum().backward()
    node_bytes = 4 * 4_000 * heads * width
    # rows of 500 edges are summed in three pieces; [E, H, F] would be 500 node_bytes
    assert torch.cuda.max_memory_allocated() - before < 16 * node_bytes


@pytest.mark.parametrize("edge", [False, True])
@pytest.mark.parametrize("heads, width", [(1, 1), (3, 17), (8, 16), (1, 129)])
@pytest.mark.parametrize("kind", ["random", "hubs"])
@pytest.mark.parametrize("form", FORMS)
def test_memory_beside_results_and_gradients_stays_untouched(
    form: str, kind: str, heads: int, width: int, edge: bool, guarded: Callable[[], None]
) -> None:
    g = some_graph(kind)
    tensors = leaves(operands(form, g, heads, width, edge, torch.float32))
    out = attend(form, g, tensors)
    upstream = torch.ones_like(out)
    for t in (out, *torch.autograd.grad(out, [t for t in tensors if t is not None], upstream)):
        assert t.isfinite().all()  # each element was written
    guarded()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("call", ["attend", "step"])
@pytest.mark.parametrize("kind, dtype", [("random", torch.float32), ("hubs", torch.float32), ("hubs", torch.float64)])
def test_captured_in_a_cuda_graph(kind: str, dtype: torch.dtype, call: str, form: str) -> None:
    g = some_graph(kind)
    tensors = leaves(operands(form, g, 4, 8, False, dtype))

    def attend_once() -> Tensor:
        return attend(form, g, tensors).detach()

    def step() -> Tensor:
        out = attend(form, g, tensors)
        return torch.cat([t.flatten() for t in torch.autograd.grad(out.sum(), tensors[:3])])

    body: Callable[[], Tensor] = attend_once if call == "attend" else step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        want = body()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = body()
    captured.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, want)


@pytest.mark.parametrize("form", FORMS)
def test_compiled_without_graph_breaks(form: str) -> None:
    g = random_graph(301, 203, 3_001)
    g.t().operands()
    ours = leaves(operands(form, g, 2, 8, True, torch.float32))
    theirs = leaves(ours)
    compiled = torch.compile(lambda *t: attend(form, g, list(t)), fullgraph=True)
    out, want = compiled(*ours), attend(form, g, theirs)
    assert_close(out, want)
    assert_close(gradients(out, ours), gradients(want, theirs))


def test_operands_on_the_cpu_are_named() -> None:
    g = random_graph(6, 5, 12)
    h = torch.zeros(6, 2, 3)
    with pytest.raises(ValueError, match=r"h is on cpu, but the graph is on cuda:0"):
        tcg.gat_attention(g, h, h[..., 0], h[:5, :, 0])
