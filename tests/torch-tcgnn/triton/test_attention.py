"""Attention kernels against the reference: through the interpreter on the CPU, on a GPU machine on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch_tcgnn import reference
from torch_tcgnn.adjacency import Adjacency, compress, transpose
from torch_tcgnn.kernels.dropout import dropout_factor
from torch_tcgnn.row_plan import plan_rows

pytest.importorskip("triton")
# the interpreter computes masked lanes too, with numpy
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SOURCES, TARGETS = 6, 5
ROW = (1, 1, 1, 1, 0, 0, 3, 3, 4, 4, 4, 0)
COL = (0, 1, 0, 5, 4, 4, 2, 3, 1, 0, 2, 5)
"""Unsorted, duplicates, self loops; target 2 has no edges."""
FORMS = ["additive", "gatv2", "dot"]
FACTOR = 0.3


def edges(row: tuple[int, ...] = ROW, col: tuple[int, ...] = COL) -> tuple[Tensor, Tensor]:
    return torch.tensor(row, device=DEVICE), torch.tensor(col, device=DEVICE)


def sample(
    form: str, num_edges: int, heads: int, width: int, with_edge: bool, dtype: torch.dtype
) -> list[Tensor | None]:
    """Differentiable operands, the same in every run."""
    rng = torch.Generator().manual_seed(3)
    k, m, node = SOURCES, TARGETS, (heads, width)
    shapes = {
        "additive": [(k, *node), (k, heads), (m, heads), (num_edges, heads)],
        "gatv2": [(k, *node), (m, *node), node, (num_edges, *node)],
        "dot": [(m, *node), (k, *node), (k, *node), (num_edges, *node)],
    }[form]
    made = [torch.randn(s, generator=rng, dtype=torch.float64).to(DEVICE, dtype).requires_grad_() for s in shapes]
    return made if with_edge else [*made[:3], None]


def expected(form: str, row: Tensor, col: Tensor, tensors: list[Tensor | None], dropout: float, seed: Tensor) -> Tensor:
    a, b, c, edge = tensors
    if form == "additive":
        logits, value = reference.additive_logits(row, col, b, c, edge, FACTOR), a
    elif form == "gatv2":
        logits, value = reference.gatv2_logits(row, col, a, b, c, edge, FACTOR), a
    else:
        logits, value = reference.dot_logits(row, col, a, b, edge, FACTOR), c
    weight = reference.edge_softmax(row, logits, TARGETS)
    factor = dropout_factor(seed, torch.arange(row.shape[0], device=DEVICE), weight.shape[1], dropout, weight.dtype)
    message = value[col] + edge if form == "dot" and edge is not None else value[col]
    return reference.segment_sum(row, message * (weight if factor is None else weight * factor).unsqueeze(-1), TARGETS)


def graph(row: Tensor, col: Tensor, longest: int | None = None) -> tuple[Adjacency, Adjacency]:
    """The rows and the columns, those of more than ``longest`` entries cut into pieces."""
    adjacency = compress(row, col, TARGETS, SOURCES)
    both = adjacency, transpose(adjacency, SOURCES)
    if longest is None:
        return both
    return tuple(replace(a, plan=plan_rows(a.rowptr, longest=longest)) for a in both)


def results(form: str, adjacency, transposed, tensors: list, dropout: float, grad: Tensor) -> tuple[Tensor, ...]:
    """Output, lse and the four gradients."""
    kernels = import_module(f"torch_tcgnn.kernels.triton.attention_{form}")
    plain = [None if t is None else t.detach() for t in tensors]
    out, lse = getattr(kernels, f"{form}_attention")(adjacency, *plain, FACTOR, dropout, seed())
    backward = getattr(kernels, f"{form}_attention_backward")
    return out, lse, *backward(adjacency, transposed, *plain, FACTOR, dropout, seed(), out, lse, grad)


def seed() -> Tensor:
    return torch.tensor([2**62 + 12345], device=DEVICE)


def upstream(form: str, tensors: list) -> Tensor:
    value = tensors[2 if form == "dot" else 0]
    shape = TARGETS, *value.shape[1:]
    return torch.linspace(-1, 2, shape[0] * shape[1] * shape[2], dtype=value.dtype, device=DEVICE).view(shape)


def check(
    form, row, col, heads, width, *, with_edge=False, dropout=0.0, dtype=torch.float64, tolerance=1e-10, longest=None
) -> None:
    """Output and all gradients, both passes of backward, against autograd of the reference in float64."""
    tensors = sample(form, row.shape[0], heads, width, with_edge, dtype)
    wide = [None if t is None else t.detach().double().requires_grad_() for t in tensors]
    want = expected(form, row, col, wide, dropout, seed())
    grad = upstream(form, tensors)
    want_grads = torch.autograd.grad(want, [t for t in wide if t is not None], grad.double())
    out, _, *grads = results(form, *graph(row, col, longest), tensors, dropout, grad)
    assert out.dtype == dtype
    assert_close(out.double(), want.detach(), rtol=tolerance, atol=tolerance)
    for got, truth in zip(grads[: len(want_grads)], want_grads, strict=True):
        assert got.dtype == dtype
        assert_close(got.double(), truth, rtol=4 * tolerance, atol=4 * tolerance)
    if not with_edge:
        assert grads[3].numel() == 0


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("with_edge", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_three_heads_of_five(form: str, with_edge: bool, dropout: float) -> None:
    check(form, *edges(), 3, 5, with_edge=with_edge, dropout=dropout)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("heads, width", [(1, 1), (2, 8), (3, 130)])
def test_widths_up_to_several_groups_of_heads(form: str, heads: int, width: int) -> None:
    check(form, *edges(), heads, width, with_edge=True)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_longer_than_a_tile_and_edges_in_row_order(form: str) -> None:
    col = (*sorted(i % SOURCES for i in range(41)), 0, 4)
    check(form, *edges((*[1] * 41, 3, 3), col), 2, 3, with_edge=True, dropout=0.2)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.float16, 3e-3), (torch.bfloat16, 2e-2)])
def test_low_precision_accumulates_in_float32(form: str, dtype: torch.dtype, tolerance: float) -> None:
    check(form, *edges(), 2, 3, with_edge=True, dtype=dtype, tolerance=tolerance)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("heads, width", [(2, 0), (0, 3), (2, 3)])
def test_nothing_to_do(form: str, heads: int, width: int) -> None:
    row, col = edges((), ())
    check(form, row.long(), col.long(), heads, width, with_edge=True)


LONG = (*[1] * 18, *[4] * 9, *[0] * 5, 3, 3)
LONG_COL = tuple((5 * i + i // 7) % 6 if i % 3 else 2 for i in range(len(LONG)))
"""Targets of 18, 9, 5 and 2 edges and one of none; source 2 has over a third of the edges."""


@pytest.fixture
def launches(monkeypatch) -> Iterator[list[str]]:
    """Names of the kernels that merge pieces, one a launch."""
    merge = import_module("torch_tcgnn.kernels.triton.attention_launch")
    found: list[str] = []
    for name in ("merge_softmax", "add_pieces"):
        run = getattr(merge, name)
        monkeypatch.setattr(merge, name, lambda *a, run=run, name=name: (found.append(name), run(*a)))
    return found


@pytest.mark.parametrize(
    "with_edge, dropout, longest", [(False, 0.0, 4), (True, 0.0, 4), (False, 0.4, 4), (True, 0.4, 7)]
)
@pytest.mark.parametrize("form", FORMS)
def test_cut_rows_and_columns(form: str, with_edge: bool, dropout: float, longest: int) -> None:
    check(form, *edges(LONG, LONG_COL), 3, 5, with_edge=with_edge, dropout=dropout, longest=longest)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.float16, 3e-3), (torch.bfloat16, 2e-2)])
def test_cut_rows_in_low_precision(form: str, dtype: torch.dtype, tolerance: float) -> None:
    check(form, *edges(LONG, LONG_COL), 2, 3, with_edge=True, dtype=dtype, tolerance=tolerance, longest=4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("heads, width", [(1, 1), (2, 0), (0, 3), (3, 130), (9, 5)])
def test_cut_rows_of_many_widths(form: str, heads: int, width: int) -> None:
    check(form, *edges(LONG, LONG_COL), heads, width, with_edge=True, longest=4)


def test_cut_rows_where_values_are_wider_than_keys() -> None:
    row, col = edges(LONG, LONG_COL)
    query, key, _, _ = sample("dot", row.shape[0], 2, 3, False, torch.float64)
    value = torch.linspace(-1, 1, SOURCES * 2 * 7, dtype=torch.float64, device=DEVICE).view(SOURCES, 2, 7)
    tensors = [query, key, value.requires_grad_(), None]
    want = expected("dot", row, col, tensors, 0.4, seed())
    grad = upstream("dot", tensors)
    out, _, *grads = results("dot", *graph(row, col, 4), tensors, 0.4, grad)
    assert_close(out, want.detach())
    assert_close(tuple(grads[:3]), torch.autograd.grad(want, tensors[:3], grad))


@pytest.mark.parametrize("form", FORMS)
def test_where_a_row_is_cut_changes_no_more_than_rounding(form: str) -> None:
    row, col = edges(LONG, LONG_COL)
    tensors = sample(form, row.shape[0], 2, 3, True, torch.float32)
    grad = upstream(form, tensors)
    whole = results(form, *graph(row, col, 64), tensors, 0.3, grad)
    for longest in (1, 7):
        assert_close(results(form, *graph(row, col, longest), tensors, 0.3, grad), whole, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("form", FORMS)
def test_two_runs_over_cut_rows_agree_bit_for_bit(form: str) -> None:
    row, col = edges(LONG, LONG_COL)
    tensors = sample(form, row.shape[0], 2, 3, True, torch.float32)
    grad = upstream(form, tensors)
    first, second = (results(form, *graph(row, col, 4), tensors, 0.3, grad) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("longest, merges", [(64, []), (9, ["merge_softmax", *["add_pieces"] * 2])])
@pytest.mark.parametrize("form", FORMS)
def test_pieces_are_merged_only_where_rows_are_cut(form: str, longest: int, merges: list[str], launches) -> None:
    row, col = edges(LONG, LONG_COL)
    tensors = sample(form, row.shape[0], 2, 3, False, torch.float32)
    results(form, *graph(row, col, longest), tensors, 0.0, upstream(form, tensors))
    assert launches == merges


@pytest.mark.parametrize("longest", [None, 1])
def test_masked_edges_and_a_fully_masked_target(longest: int | None) -> None:
    row, col = edges()
    value, source, target, logit = (t.detach() for t in sample("additive", 12, 2, 3, True, torch.float64))
    gone = torch.tensor([0, 6, 7], device=DEVICE)  # one edge of target 1, all edges of target 3
    logit = logit.index_fill(0, gone, float("-inf"))
    value.requires_grad_()
    adjacency, transposed = graph(row, col, longest)
    operands = [value, source, target, logit]
    out, lse, *grads = results("additive", adjacency, transposed, operands, 0.0, upstream("additive", operands))
    kept = torch.tensor([i for i in range(12) if i not in (0, 6, 7)], device=DEVICE)
    want = expected("additive", row[kept], col[kept], [value, source, target, logit[kept]], 0.0, seed())
    assert_close(out, want.detach())
    assert (lse[[2, 3]] == float("-inf")).all()
    assert not out[[2, 3]].any()
    assert all(g.isfinite().all() for g in grads)
    assert_close(grads[0], *torch.autograd.grad(want, value, upstream("additive", operands)))
