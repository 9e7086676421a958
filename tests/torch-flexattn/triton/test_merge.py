"""The kernel that puts two parts of a softmax together."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_flexattn import merge_attention, reference
from torch_flexattn.kernels.triton import merge

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INF = float("inf")


def part(
    seed: int, *shape: int, dtype: torch.dtype = torch.float32, order: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor]:
    """``out`` and ``lse``; in memory the dimensions before the features are in ``order``."""
    rng = torch.Generator().manual_seed(seed)
    order = order or tuple(range(len(shape) - 1))
    out = torch.randn(*(shape[d] for d in order), shape[-1], generator=rng).to(dtype)
    places = [order.index(d) for d in range(len(order))]
    return out.permute(*places, len(order)).to(DEVICE), (3 * torch.randn(shape[:-1], generator=rng)).to(DEVICE)


def check(one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor], tolerance: float = 1e-6) -> Tensor:
    assert merge.serves(one[0], two[0])
    out, lse = merge.merged(*one, *two)
    expected, total = reference.merge_attention([(o.cpu(), s.cpu()) for o, s in (one, two)])
    assert (out.dtype, out.shape, lse.dtype) == (one[0].dtype, one[0].shape, torch.float32)
    assert out.stride() == torch.empty_like(one[0]).stride()
    torch.testing.assert_close(out.cpu().double(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    torch.testing.assert_close(lse.cpu().double(), total, rtol=1e-6, atol=1e-6, equal_nan=True)
    return out


@pytest.mark.parametrize("shape", [(2, 3, 5, 16), (1, 2, 70, 96), (3, 4, 7), (5, 3), (1, 1, 1, 1), (2, 0, 3, 4)])
def test_shapes(shape: tuple[int, ...]) -> None:
    check(part(0, *shape), part(1, *shape))


def test_parts_of_other_memory_orders_and_types() -> None:
    check(part(0, 2, 3, 5, 8, order=(0, 2, 1)), part(1, 2, 3, 5, 8, order=(2, 0, 1)))
    check(part(0, 2, 3, 5, 8), part(1, 2, 3, 5, 8, dtype=torch.float16))
    check(part(0, 2, 3, 5, 8, dtype=torch.float16), part(1, 2, 3, 5, 8, dtype=torch.float16), 1e-3)


def test_rows_that_a_part_did_not_see_are_not_read() -> None:
    one, two = part(0, 2, 3, 5, 8), part(1, 2, 3, 5, 8)
    one[0][0, 1, 2], one[1][0, 1, 2] = torch.nan, -INF
    two[0][1, 2, 4], two[1][1, 2, 4] = INF, -INF
    for out, lse in (one, two):
        out[1, 0, 0], lse[1, 0, 0] = torch.nan, -INF
    found = check(one, two)
    assert torch.equal(found[0, 1, 2], two[0][0, 1, 2])
    assert torch.equal(found[1, 2, 4], one[0][1, 2, 4])
    assert found[1, 0, 0].tolist() == [0] * 8


def test_a_row_that_is_not_a_number_stays_alone() -> None:
    one, two = part(0, 1, 2, 5, 8), part(1, 1, 2, 5, 8)
    one[1][0, 1, 3] = torch.nan
    found = check(one, two)
    assert found[0, 1, 3].isnan().all()
    assert int(found.isnan().any(-1).sum()) == 1


def test_features_apart_are_left_to_others() -> None:
    out = torch.zeros(1, 2, 8, 5).transpose(2, 3)
    assert not merge.serves(out, out.contiguous())
    assert not merge.serves(out.contiguous(), out)
    assert not merge.serves(torch.zeros(1, 1, 1, 2, 3), torch.zeros(1, 1, 1, 2, 3))
    assert not merge.serves(torch.zeros(3), torch.zeros(3))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merging_on_a_gpu_takes_the_kernel(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    kernel = merge.merged
    monkeypatch.setattr(merge, "merged", lambda *parts: calls.append(1) or kernel(*parts))
    given = [part(n, 2, 4, 300, 96, dtype=dtype) for n in range(3)]
    leaves = [t.requires_grad_() for pair in given for t in pair]
    out, lse = merge_attention(given)
    assert len(calls) == 2
    expected, total = reference.merge_attention(given)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.double(), total, rtol=1e-5, atol=1e-5)
    weights = torch.randn_like(expected), torch.randn_like(total)
    found, meant = (
        torch.autograd.grad((o.double() * weights[0]).sum() + (s.double() * weights[1]).sum(), leaves)
        for o, s in ((out, lse), (expected, total))
    )
    for a, b in zip(found, meant, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=5 * tolerance)


@pytest.mark.gpu
def test_merging_in_a_graph() -> None:
    given = [part(n, 1, 2, 100, 64) for n in range(2)]
    merge_attention(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = merge_attention(given)
    given[0][0].mul_(2)
    graph.replay()
    torch.testing.assert_close(out.double(), reference.merge_attention(given)[0], rtol=1e-5, atol=1e-5)
