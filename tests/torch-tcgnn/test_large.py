"""Sizes at which others went wrong: gradients over 50,000 rows, 2²⁴ edges, and features of more than 2³¹ elements.

The first is pytorch/pytorch#99848, where the gradient of a large CSR product was wrong and that of a small one right.
The second is where TC-GNN's products of edges go wrong: it passes the number of an edge through a float32.
"""

from __future__ import annotations

import pytest
import torch
import torch_tcgnn as tcg
from torch import Tensor
from torch_tcgnn import reference

NODES, EDGES = 60_000, 200_000
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def edge_list() -> Tensor:
    """Directed, unsorted, duplicates, rows without edges, a long row and a long column."""
    rng = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, NODES - 500, (2, EDGES), generator=rng)
    edge_index[1, :3_000], edge_index[0, 3_000:6_000] = 7, 59_000
    edge_index[:, 6_000:6_100] = edge_index[:, :100]
    return edge_index[:, torch.randperm(EDGES, generator=rng)]


SHAPES = {
    "x": (NODES, 2, 3), "y": (NODES, 2, 3), "z": (NODES, 2, 3), "flat": (NODES, 3),
    "at_nodes": (NODES, 2), "at_edges": (EDGES, 2), "one": (EDGES,), "att": (2, 3),
}  # fmt: skip


def operands(names: tuple[str, ...], device: str) -> list[Tensor]:
    """Leaves in float64, the same for ours and for the reference."""
    rng = torch.Generator().manual_seed(1)
    made = [torch.randn(SHAPES[name], generator=rng, dtype=torch.float64) for name in names]
    return [t.to(device).requires_grad_() for t in made]


CASES = {
    "spmm": (
        ("flat", "one"),
        lambda g, x, w: tcg.spmm(g, x, w),
        lambda row, col, x, w: reference.spmm(row, col, x, w, NODES),
    ),
    "spmm, heads": (
        ("x", "at_edges"),
        lambda g, x, w: tcg.spmm(g, x, w),
        lambda row, col, x, w: reference.spmm(row, col, x, w, NODES),
    ),
    "mean": (
        ("flat", "one"),
        lambda g, x, w: tcg.spmm(g, x, w, reduce="mean"),
        lambda row, col, x, w: (
            reference.spmm(row, col, x, w, NODES) / row.bincount(minlength=NODES).clamp(min=1)[:, None]
        ),
    ),
    "max": (
        ("flat", "one"),
        lambda g, x, w: tcg.spmm(g, x, w, reduce="max"),
        lambda row, col, x, w: reference.spmm_extremum(row, col, x, w, NODES, True),
    ),
    "sddmm": (("x", "y"), tcg.sddmm, reference.sddmm),
    "edge_softmax": (
        ("at_edges",),
        tcg.edge_softmax,
        lambda row, col, logits: reference.edge_softmax(row, logits, NODES),
    ),
    "segment": (
        ("at_edges",),
        tcg.segment,
        lambda row, col, values: reference.segment_sum(row, values, NODES),
    ),
    "gat": (
        ("x", "at_nodes", "at_nodes", "at_edges"),
        lambda g, h, s, t, e: tcg.gat_attention(g, h, s, t, edge_logit=e),
        lambda row, col, h, s, t, e: reference.attention(
            row, col, h, reference.additive_logits(row, col, s, t, e, 0.2), NODES
        ),
    ),
    "gatv2": (
        ("x", "y", "att"),
        tcg.gatv2_attention,
        lambda row, col, left, right, att: reference.attention(
            row, col, left, reference.gatv2_logits(row, col, left, right, att, None, 0.2), NODES
        ),
    ),
    "dot": (
        ("x", "y", "z"),
        tcg.dot_attention,
        lambda row, col, q, k, v: reference.attention(
            row, col, v, reference.dot_logits(row, col, q, k, None, 3**-0.5), NODES
        ),
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_gradients_over_more_than_fifty_thousand_rows(name, device):
    names, ours, meaning = CASES[name]
    edge_index = edge_list().to(device)
    col, row = edge_index
    mine, theirs = operands(names, device), operands(names, device)
    out = ours(tcg.TCGraph.from_edge_index(edge_index, NODES), *mine)
    want = meaning(row, col, *theirs)
    torch.testing.assert_close(out, want, rtol=1e-9, atol=1e-9)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype).to(device)
    for got, truth in zip(torch.autograd.grad(out, mine, upstream), torch.autograd.grad(want, theirs, upstream)):
        torch.testing.assert_close(got, truth, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("device", DEVICES)
def test_edges_beyond_two_to_the_24_keep_their_numbers(device):
    edges = torch.arange(2**24 + 5, device=device)
    source, target = edges % 4_099, edges * 7 % 4_093
    g = tcg.TCGraph.from_edge_index(torch.stack([source, target]), 4_099, validate=False)
    one, number = torch.ones(4_099, 1, device=device), torch.arange(4_099.0, device=device).unsqueeze(1)
    assert torch.equal(tcg.sddmm(g, one, number), source.float())
    assert torch.equal(tcg.sddmm(g, number, one), target.float())
    assert torch.equal(tcg.gather_src(g, number[:, 0]), source.float())


# --- beyond 2³¹ elements ---

MANY, WIDE = 2_200_000, 1_024
LAST = MANY - 1
PAIRS = [(LAST - 1, LAST), (3, LAST), (LAST, 3), (LAST, LAST - 2)]
"""Edges source → target; offsets of rows from 2,097,152 on do not fit in 32 bits."""
VALUE = {3: 2.0, LAST - 2: 5.0, LAST - 1: 4.0, LAST: 3.0}


def needs_memory() -> None:
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < 80 << 30:
        pytest.skip("needs 80 GB of free GPU memory")


@pytest.fixture
def large() -> tuple[Tensor, Tensor]:
    """``edge_index``, and features ``[MANY, WIDE]`` in float16 that are 0 but for the rows of :data:`VALUE`."""
    needs_memory()
    assert (LAST - 2) * WIDE > 2**31
    x = torch.zeros(MANY, WIDE, dtype=torch.float16, device="cuda")
    for node, value in VALUE.items():
        x[node] = value
    return torch.tensor(PAIRS, device="cuda").t(), x


def check_rows(got: Tensor, rows: dict[int, float]) -> None:
    """The named rows hold one value each, all others 0."""
    flat = got.flatten(1)
    for node, value in rows.items():
        assert (flat[node] == value).all(), f"row {node}"
    named = torch.tensor([node for node, value in rows.items() if value], device=got.device)
    assert flat.any(1).nonzero().view(-1).tolist() == named.sort()[0].tolist()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("path", ["cuda", "tc"])
def test_sums_beyond_two_to_the_31(large, path):
    edge_index, x = large
    g = tcg.TCGraph.from_edge_index(edge_index, MANY, path=path)
    x.requires_grad_()
    out = tcg.spmm(g, x)
    check_rows(out.detach(), {LAST: 6.0, 3: 3.0, LAST - 2: 3.0})
    (grad,) = torch.autograd.grad(out, x, torch.ones_like(out))
    check_rows(grad, {LAST - 1: 1.0, 3: 1.0, LAST: 2.0})


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("path", ["cuda", "tc"])
def test_weighted_sums_and_products_beyond_two_to_the_31(large, path):
    edge_index, x = large
    g = tcg.TCGraph.from_edge_index(edge_index, MANY, path=path)
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0], device="cuda")
    check_rows(tcg.spmm(g, x, weight), {LAST: 8.0, 3: 9.0, LAST - 2: 12.0})
    products = tcg.sddmm(g, x * 0.25, x * 0.25) / (WIDE / 16)
    assert products.tolist() == [VALUE[source] * VALUE[target] for source, target in PAIRS]


@pytest.mark.gpu
@pytest.mark.slow
def test_extrema_beyond_two_to_the_31(large):
    edge_index, x = large
    g = tcg.TCGraph.from_edge_index(edge_index, MANY)
    check_rows(tcg.spmm(g, x, reduce="max"), {LAST: 4.0, 3: 3.0, LAST - 2: 3.0})
    check_rows(tcg.spmm(g, x, reduce="min"), {LAST: 2.0, 3: 3.0, LAST - 2: 3.0})


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("form", ["gat", "gatv2", "dot"])
def test_attention_beyond_two_to_the_31(large, form):
    """All logits are 0: every target averages its neighbours."""
    edge_index, x = large
    g = tcg.TCGraph.from_edge_index(edge_index, MANY)
    value = x.unsqueeze(1).requires_grad_()
    zero = torch.zeros((), dtype=x.dtype, device="cuda")
    if form == "gat":
        out = tcg.gat_attention(g, value, zero.expand(MANY, 1), zero.expand(MANY, 1))
    elif form == "gatv2":
        out = tcg.gatv2_attention(g, value, torch.zeros_like(value), zero.expand(1, WIDE))
    else:
        query = torch.zeros_like(value)
        out = tcg.dot_attention(g, query, query, value)
    check_rows(out.detach(), {LAST: 3.0, 3: 3.0, LAST - 2: 3.0})
    (grad,) = torch.autograd.grad(out, value, torch.ones_like(out))
    check_rows(grad, {LAST - 1: 0.5, 3: 0.5, LAST: 2.0})


@pytest.mark.gpu
@pytest.mark.slow
def test_edge_values_beyond_two_to_the_31():
    """``[E, H]`` of more than 2³¹ elements: softmax, and sums of edge values by row."""
    needs_memory()
    target = torch.arange(MANY, device="cuda") // 2
    g = tcg.TCGraph.from_edge_index(torch.stack([target, target]), MANY)
    logits = torch.zeros(MANY, WIDE, dtype=torch.float16, device="cuda")
    out = tcg.edge_softmax(g, logits)
    assert float(out.min()) == float(out.max()) == 0.5
    total = tcg.segment(g, out)
    assert float(total[: MANY // 2].min()) == float(total.max()) == 1.0
    assert not total[MANY // 2 :].any()
