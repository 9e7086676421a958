"""Attention kernels against the reference: through the interpreter on the CPU, on a GPU machine on the GPU."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch_tcgnn import reference
from torch_tcgnn.adjacency import compress, transpose
from torch_tcgnn.kernels.dropout import dropout_factor

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


def check(form, row, col, heads, width, *, with_edge=False, dropout=0.0, dtype=torch.float64, tolerance=1e-10) -> None:
    """Output and all gradients, both passes of backward, against autograd of the reference in float64."""
    kernels = import_module(f"torch_tcgnn.kernels.triton.attention_{form}")
    adjacency = compress(row, col, TARGETS, SOURCES)
    tensors = sample(form, row.shape[0], heads, width, with_edge, dtype)
    seed = torch.tensor([2**62 + 12345], device=DEVICE)
    wide = [None if t is None else t.detach().double().requires_grad_() for t in tensors]
    want = expected(form, row, col, wide, dropout, seed)
    grad = torch.linspace(-1, 2, want.numel(), dtype=dtype, device=DEVICE).view_as(want)
    want_grads = torch.autograd.grad(want, [t for t in wide if t is not None], grad.double())
    plain = [None if t is None else t.detach() for t in tensors]
    out, lse = getattr(kernels, f"{form}_attention")(adjacency, *plain, FACTOR, dropout, seed)
    assert out.dtype == dtype
    assert_close(out.double(), want.detach(), rtol=tolerance, atol=tolerance)
    backward = getattr(kernels, f"{form}_attention_backward")
    transposed = transpose(adjacency, SOURCES)
    grads = backward(adjacency, transposed, *plain, FACTOR, dropout, seed, out, lse, grad)
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


def test_masked_edges_and_a_fully_masked_target() -> None:
    row, col = edges()
    kernels = import_module("torch_tcgnn.kernels.triton.attention_additive")
    value, source, target, logit = (t.detach() for t in sample("additive", 12, 2, 3, True, torch.float64))
    gone = torch.tensor([0, 6, 7], device=DEVICE)  # one edge of target 1, all edges of target 3
    logit = logit.index_fill(0, gone, float("-inf"))
    seed = torch.empty(0, dtype=torch.int64, device=DEVICE)
    adjacency = compress(row, col, TARGETS, SOURCES)
    out, lse = kernels.additive_attention(adjacency, value, source, target, logit, FACTOR, 0.0, seed)
    kept = torch.tensor([i for i in range(12) if i not in (0, 6, 7)], device=DEVICE)
    tensors = [value, source, target, logit[kept]]
    assert_close(out, expected("additive", row[kept], col[kept], tensors, 0.0, seed))
    assert (lse[[2, 3]] == float("-inf")).all()
    assert not out[[2, 3]].any()
    grads = kernels.additive_attention_backward(
        adjacency, transpose(adjacency, SOURCES), value, source, target, logit, FACTOR, 0.0, seed, out, lse, out + 1
    )
    assert all(g.isfinite().all() for g in grads)
