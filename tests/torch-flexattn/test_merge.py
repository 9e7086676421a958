"""Attention over all keys from attention over parts of them: every way in which PyTorch may call it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch_flexattn import flex_attention, merge_attention, reference

INF = float("inf")
Parts = list[tuple[Tensor, Tensor]]


def parts(count: int, dtype: torch.dtype = torch.float64, shape: tuple[int, ...] = (1, 2, 3)) -> Parts:
    rng = torch.Generator().manual_seed(count)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    return [
        (torch.randn(*shape, 4, generator=rng).to(dtype), 3 * torch.randn(shape, generator=rng).to(exact))
        for _ in range(count)
    ]


def flat(of: Parts) -> tuple[Tensor, ...]:
    return tuple(t.detach().requires_grad_() for part in of for t in part)


def of_flat(*tensors: Tensor) -> tuple[Tensor, Tensor]:
    return merge_attention(list(zip(tensors[::2], tensors[1::2], strict=True)))


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_parts_of_any_number_and_type(count: int, dtype: torch.dtype) -> None:
    given = parts(count, dtype)
    out, lse = merge_attention(given)
    expected, total = reference.merge_attention(given)
    assert (out.dtype, lse.dtype) == (dtype, given[0][1].dtype)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol={torch.bfloat16: 8e-3}.get(dtype, 1e-6))
    torch.testing.assert_close(lse.double(), total, rtol=0, atol=1e-6)


def test_sixteen_bits_are_rounded_once() -> None:
    given = parts(6, torch.bfloat16, (1, 8, 100))
    expected, _ = reference.merge_attention(given)
    out, _ = merge_attention(given)
    torch.testing.assert_close(out.double(), expected, rtol=2**-8, atol=1e-6)
    between = given[0]
    for part in given[1:]:
        between = merge_attention([between, part])
    assert (out.double() - expected).abs().mean() < (between[0].double() - expected).abs().mean()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_part_that_saw_nothing_may_hold_anything(count: int) -> None:
    given = parts(count)
    given[0][0][0, 0, 0], given[0][1][0, 0, 0] = torch.nan, -INF
    for _, lse in given:
        lse[0, 1, 2] = -INF
    given[-1][0][0, 1, 2] = INF
    tensors = flat(given)
    out, lse = of_flat(*tensors)
    assert out.isfinite().all()
    assert out[0, 1, 2].tolist() == [0] * 4
    assert lse[0, 1, 2] == -INF
    found = torch.autograd.grad((out.sum(), lse[lse != -INF].sum()), tensors)
    assert all(g.isfinite().all() for g in found)
    assert found[0][0, 0, 0].tolist() == [0] * 4
    assert found[1][0, 0, 0] == 0


@pytest.mark.parametrize("count", [2, 3])
def test_gradients_of_first_and_second_order(count: int) -> None:
    tensors = flat(parts(count, shape=(2,)))
    assert torch.autograd.gradcheck(of_flat, tensors)
    assert torch.autograd.gradgradcheck(of_flat, tensors)


def test_memory_order_is_that_of_the_first_part() -> None:
    given = [(out.transpose(1, 2), lse.transpose(1, 2)) for out, lse in parts(2, shape=(2, 3, 5))]
    assert merge_attention(given)[0].stride() == given[0][0].stride()


def test_transforms_of_functions() -> None:
    tensors = tuple(t.detach() for t in flat(parts(3)))
    out, lse = torch.func.vmap(of_flat)(*tensors)
    torch.testing.assert_close((out, lse), of_flat(*tensors))
    loss = lambda *t: sum(x.square().sum() for x in of_flat(*t))  # noqa: E731
    leaves = flat(parts(3))
    expected = torch.autograd.grad(loss(*leaves), leaves)
    torch.testing.assert_close(torch.func.grad(loss, tuple(range(6)))(*tensors), expected)
    _, along = torch.func.jvp(loss, tensors, tensors)
    torch.testing.assert_close(along, sum((g * t).sum() for g, t in zip(expected, tensors)))
    with forward_ad.dual_level():
        dual = loss(*(forward_ad.make_dual(t, t) for t in tensors))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, along)


def test_a_compiler_sees_one_operator_a_further_part() -> None:
    tensors = flat(parts(3))
    names: list[str] = []

    def count(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        names.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    torch._dynamo.reset()
    assert_close(torch.compile(of_flat, fullgraph=True, backend=count)(*tensors), of_flat(*tensors))
    assert names.count("torch_flexattn.merge") == 2
    torch._dynamo.reset()
    compiled = torch.compile(of_flat, fullgraph=True, backend="aot_eager")
    found, expected = (
        torch.autograd.grad(sum(x.square().sum() for x in f(*tensors)), tensors) for f in (compiled, of_flat)
    )
    torch.testing.assert_close(found, expected)


def test_new_lengths_take_one_graph_more_and_then_none() -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(of_flat, fullgraph=True, backend=counter)
    for length in (3, 5, 8, 13):
        tensors = flat(parts(2, shape=(1, 2, length)))
        assert_close(compiled(*tensors), of_flat(*tensors))
    assert counter.frame_count == 2


def assert_close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(tuple(found), tuple(expected))


def test_parts_of_attention_under_export() -> None:
    class Halves(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            halves = [flex_attention(q, k[:, :, s], k[:, :, s], return_lse=True) for s in (slice(8), slice(8, None))]
            return merge_attention(halves)[0]

    q, k = (torch.randn(1, 2, n, 8, generator=torch.Generator().manual_seed(n)) for n in (5, 20))
    program = torch.export.export(Halves(), (q, k))
    torch.testing.assert_close(program.module()(q, k), flex_attention(q, k, k))
