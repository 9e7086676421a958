"""Attention to selected blocks against the dense reference, on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_flexattn import flex_attention, masks, reference, selected_attention, stats
from torch_flexattn.errors import UnsupportedError
from torch_flexattn.kernels.cpu import selected as blockwise
from torch_flexattn.kernels.selected_lists import by_block, segments

# Sizes: batch, heads, heads of keys, queries, keys, features, features of values.
CASES: dict[str, dict[str, Any]] = {
    "a group of two": {},
    "no groups": {"sizes": (1, 2, 2, 37, 37, 8, 8)},
    "a group of three": {"sizes": (1, 6, 2, 33, 33, 5, 7)},
    "more keys than queries": {"sizes": (1, 2, 1, 5, 70, 8, 8), "q_offset": 65},
    "an offset": {"sizes": (1, 2, 1, 20, 50, 8, 8), "q_offset": 7},
    "not causal": {"sizes": (2, 2, 1, 20, 50, 8, 8), "causal": False},
    "keys of all the batch": {"kv_batch": 1},
    "a block longer than all": {"block_size": 64},
    "a block of 48": {"sizes": (1, 2, 1, 100, 100, 4, 4), "block_size": 48},
    "a scale": {"scale": 0.7},
    "one number for all": {"block_counts": 1},
    "all count": {"block_counts": None},
    "no entries": {"entries": 0},
    "no queries": {"sizes": (1, 2, 1, 0, 20, 4, 4)},
    "no keys": {"sizes": (1, 2, 1, 5, 0, 4, 4), "entries": 0},
}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lists(batch: int, groups: int, rows: int, columns: int, entries: int) -> tuple[Tensor, Tensor]:
    """Distinct blocks, some of them none, and how many count: of some queries nothing is left."""
    generator = torch.Generator().manual_seed(5)
    order = torch.rand(batch, groups, rows, columns, generator=generator).argsort(-1)[..., :entries]
    none = torch.rand(order.shape, generator=generator) < 0.2
    counts = torch.randint(0, order.shape[3] + 1, order.shape[:3], generator=generator)
    return torch.where(none, -1, order), counts


def prepared(case: dict[str, Any]) -> tuple[list[Tensor], dict[str, Any]]:
    case = {"block_size": 16, **case}
    batch, heads, groups, rows, keys, width, width_v = case.pop("sizes", (2, 4, 2, 37, 37, 8, 5))
    first = case.pop("kv_batch", batch)
    shapes = (batch, heads, rows, width), (first, groups, keys, width), (first, groups, keys, width_v)
    indices, counts = lists(batch, groups, rows, -(-keys // case["block_size"]), case.pop("entries", 3))
    case = {"block_counts": counts, **case}
    return [drawn(*shape, seed=n) for n, shape in enumerate(shapes)], {"block_indices": indices, **case}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(name: str) -> None:
    tensors, case = prepared(CASES[name])
    tensors = [t.requires_grad_() for t in tensors]
    out, lse = selected_attention(*tensors, return_lse=True, **case)
    expected = reference.selected_attention(*tensors, **case)
    torch.testing.assert_close((out, lse), expected)
    assert stats().kernel == "cpu"
    seen = expected[1] != float("-inf")
    of_out, of_lse = drawn(*out.shape, seed=7), torch.where(seen, drawn(*lse.shape, seed=8), 0)
    found = torch.autograd.grad((out, lse), tensors, (of_out, of_lse))
    torch.testing.assert_close(found, torch.autograd.grad(expected, tensors, (of_out, of_lse)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_low_precision(dtype: torch.dtype) -> None:
    tensors, case = prepared({})
    tensors = [t.to(dtype).requires_grad_() for t in tensors]
    out, expected = selected_attention(*tensors, **case), reference.selected_attention(*tensors, **case)[0]
    slack = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=slack, atol=slack)
    grad = drawn(*out.shape, seed=7).to(dtype)
    found = torch.autograd.grad(out, tensors, grad)
    for a, b in zip(found, torch.autograd.grad(expected, tensors, grad.double()), strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), b.double(), rtol=slack, atol=slack)


def test_all_blocks_are_causal_attention() -> None:
    (q, k, v), _ = prepared({})
    blocks = torch.arange(3).expand(2, 2, 37, 3)
    expected = flex_attention(q, k, v, mask_mod=masks.causal(), enable_gqa=True)
    torch.testing.assert_close(selected_attention(q, k, v, blocks, block_size=16), expected)


def test_few_queries_at_a_time_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, case = prepared({})
    tensors = [t.requires_grad_() for t in tensors]

    def run() -> tuple[Tensor, ...]:
        out = selected_attention(*tensors, **case)
        return out, *torch.autograd.grad(out.square().sum(), tensors)

    expected = run()
    monkeypatch.setattr(blockwise, "MOST", 4)
    torch.testing.assert_close(run(), expected)


def test_keys_are_not_copied_for_each_query() -> None:
    """Memory: 1,000 queries that see 512 keys each would take 1 GiB, were these gathered."""
    largest = 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = function(*args, **kwargs or {})
            if isinstance(result, Tensor):
                largest = max(largest, result.untyped_storage().nbytes())
            return result

    q, k = torch.zeros(1, 2, 1000, 256), torch.zeros(1, 1, 1000, 256)
    blocks = torch.arange(8).expand(1, 1, 1000, 8)
    with Watch():
        selected_attention(q, k, k, blocks)
    assert 0 < largest <= 2 * 1000 * 256 * 4


def test_what_is_repeated_or_beyond_counts_once_or_not_at_all() -> None:
    (q, k, v), _ = prepared({})
    wrong = torch.tensor([1, 0, 7, 1, -3, 0]).expand(2, 2, 37, 6)
    found = selected_attention(q, k, v, wrong, block_size=16, check=False)
    assert torch.equal(found, selected_attention(q, k, v, torch.tensor([0, 1]).expand(2, 2, 37, 2), block_size=16))


def test_order_of_the_list_does_not_matter() -> None:
    tensors, case = prepared({"block_counts": None})
    turned = {**case, "block_indices": case["block_indices"].flip(-1)}
    assert torch.equal(selected_attention(*tensors, **case), selected_attention(*tensors, **turned))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_at_invisible_keys_do_not_leak(bad: float) -> None:
    (q, k, v), _ = prepared({})
    blocks = torch.tensor([0, 2]).expand(2, 2, 37, 2)
    expected = selected_attention(q, k, v, blocks, block_size=16)
    for t in (k, v):
        t[:, :, [20, 35]] = bad  # of block 1; behind most queries that see block 2
    found = selected_attention(q, k, v, blocks, block_size=16)
    assert torch.equal(found[:, :, :35], expected[:, :, :35])
    assert not bool(found[:, :, 35:].isfinite().any())
    q.requires_grad_()
    torch.autograd.backward(selected_attention(q, k, v, blocks, block_size=16)[:, :, :35].sum())
    assert bool(q.grad[:, :, :35].isfinite().all())


def test_strides_are_those_of_the_query() -> None:
    (q, k, v), case = prepared({})
    heads_last = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    found = selected_attention(*heads_last, **case)
    assert found.transpose(1, 2).is_contiguous()
    torch.testing.assert_close(found, selected_attention(q, k, v, **case))


def test_second_derivatives_by_the_reference_alone() -> None:
    tensors, case = prepared({"sizes": (1, 2, 1, 3, 20, 2, 2)})
    leaves = [t.requires_grad_() for t in tensors]
    with pytest.raises(UnsupportedError, match="backend='reference'"):
        torch.autograd.grad(selected_attention(*leaves, **case).sum(), leaves, create_graph=True)

    def dense(*given: Tensor) -> Tensor:
        return selected_attention(*given, backend="reference", **case)

    assert torch.autograd.gradgradcheck(dense, leaves)


def test_keys_that_changed_before_backward_are_refused() -> None:
    (q, k, v), case = prepared({})
    out = selected_attention(q.requires_grad_(), k, v, **case)
    k.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_list_may_change_before_backward() -> None:
    (q, k, v), case = prepared({"block_counts": None})
    expected, found = (selected_attention(q.requires_grad_(), k, v, **case) for _ in range(2))
    expected = torch.autograd.grad(expected.square().sum(), q)
    case["block_indices"].fill_(0)
    assert torch.equal(torch.autograd.grad(found.square().sum(), q)[0], expected[0])


def test_compiled_whole() -> None:
    tensors, case = prepared({})
    tensors = [t.requires_grad_() for t in tensors]
    torch._dynamo.reset()

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = selected_attention(q, k, v, return_lse=True, **case)
        return out.square().sum() + lse.exp().sum()

    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found, expected = fast(*tensors), loss(*tensors)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, tensors), torch.autograd.grad(expected, tensors))


def test_autocast() -> None:
    tensors, case = prepared({})
    with torch.autocast("cpu", torch.bfloat16):
        assert selected_attention(*(t.float() for t in tensors), **case).dtype == torch.bfloat16


def test_lists_turned_round() -> None:
    blocks = torch.tensor([[[[0, 2], [2, -1], [9, 2]], [[1, 0], [3, 3], [0, 1]]]])
    found = by_block(blocks, 3)
    queries = [found.queries[a:b].tolist() for a, b in zip(found.begin.tolist(), found.begin[1:].tolist())]
    assert queries == [[0], [], [0, 1, 2], [0, 2], [0, 2], []]


def test_segments_cover_the_lists() -> None:
    blocks, _ = lists(2, 2, 37, 3, 2)
    found = by_block(blocks, 3)
    first, owner = segments(found, 5)
    for block, count in enumerate(found.begin.diff().tolist()):
        own = (owner == block).nonzero().flatten().tolist()
        assert own == list(range(int(first[block]), int(first[block + 1])))
        assert len(own) == -(-count // 5)
    assert int((owner < 12).sum()) == int(first[-1])


def test_nothing_waits_for_the_device() -> None:
    """Tensors of the meta device have no data that something could wait for."""
    blocks = torch.zeros(2, 2, 37, 3, dtype=torch.int32, device="meta")
    found = segments(by_block(blocks, 3), 16)
    assert found.owner.shape == (12 + 2 * 2 * 37 * 3 // 16,)
    q, k = torch.zeros(2, 4, 37, 8, device="meta"), torch.zeros(2, 2, 37, 8, device="meta")
    counts = torch.zeros(2, 2, 37, dtype=torch.int32, device="meta")
    assert selected_attention(q, k, k, blocks, counts, 16).shape == q.shape
