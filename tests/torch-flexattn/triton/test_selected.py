"""The kernels of selected blocks against the dense reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_flexattn import reference
from torch_flexattn.kernels.triton import selected as kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# Sizes: batch, heads, heads of keys, queries, keys, features, features of values.
CASES: dict[str, dict[str, Any]] = {
    "a group of two": {},
    "no groups": {"sizes": (1, 2, 2, 18, 18, 16, 16)},
    "a group of three, odd features": {"sizes": (1, 6, 2, 21, 21, 20, 7)},
    "more heads than a tile": {"sizes": (1, 70, 1, 5, 20, 16, 16)},
    "more keys than queries": {"sizes": (1, 4, 2, 3, 70, 16, 16), "q_offset": 67},
    "not causal": {"sizes": (1, 2, 1, 9, 50, 16, 32), "causal": False},
    "tiles inside a block": {"sizes": (1, 2, 1, 7, 100, 16, 16), "q_offset": 93, "block_size": 48},
    "a block longer than all": {"sizes": (1, 2, 1, 20, 20, 16, 16), "block_size": 64, "entries": 1},
    "no entries": {"sizes": (1, 2, 1, 5, 20, 16, 16), "entries": 0},
    "one key": {"sizes": (1, 2, 1, 5, 1, 16, 16)},
    "no queries": {"sizes": (1, 2, 1, 0, 20, 16, 16)},
    "no keys": {"sizes": (1, 2, 1, 5, 0, 16, 16), "entries": 0},
}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def prepared(case: dict[str, Any]) -> tuple[list[Tensor], Tensor, dict[str, Any]]:
    """Features, lists with what is none by both signs, and options."""
    case = {"block_size": 16, "causal": True, "q_offset": 15 if "sizes" not in case else 0, **case}
    batch, heads, groups, rows, keys, width, width_v = case.pop("sizes", (2, 4, 2, 9, 24, 16, 16))
    shapes = (batch, heads, rows, width), (batch, groups, keys, width), (batch, groups, keys, width_v)
    columns, generator = -(-keys // case["block_size"]), torch.Generator().manual_seed(5)
    order = torch.rand(batch, groups, rows, columns, generator=generator).argsort(-1)[..., : case.pop("entries", 3)]
    none = torch.rand(order.shape, generator=generator)
    order = torch.where(none < 0.15, -1, torch.where(none < 0.3, columns, order)).to(torch.int32)
    order[:, :, 2:4] = -1  # queries that see nothing
    return [drawn(*shape, seed=n) for n, shape in enumerate(shapes)], order, case


def agree(
    tensors: list[Tensor], blocks: Tensor, case: dict[str, Any], slack: float = 2e-5, dtype: torch.dtype = torch.float32
) -> None:
    tensors = [t.to(dtype) for t in tensors]
    leaves = [t.detach().double().requires_grad_() for t in tensors]
    expected = reference.selected_attention(*leaves, blocks, scale=0.3, **case)
    moved, on_device = [t.to(DEVICE) for t in tensors], blocks.to(DEVICE)
    out, lse = kernels.forward(*moved, on_device, scale=0.3, **case)
    assert out.dtype == dtype
    close = {"rtol": slack, "atol": slack}
    torch.testing.assert_close((out.cpu().double(), lse.cpu().double()), expected, **close)
    of_out = drawn(*out.shape, seed=7).to(dtype)
    of_lse = torch.where(expected[1] == float("-inf"), 0.0, drawn(*lse.shape, seed=8))
    grads = torch.autograd.grad(expected, leaves, (of_out.double(), of_lse.double()), retain_graph=True)
    given = (of_out.to(DEVICE), of_lse.to(DEVICE), *moved, out, lse, on_device)
    found = kernels.backward(*given, scale=0.3, **case)
    for a, b in zip(found, grads, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.cpu().double(), b, rtol=5 * slack, atol=5 * slack)
    if dtype == torch.float32:
        grads = torch.autograd.grad(expected[0], leaves, of_out.double())
        found = kernels.backward(given[0], None, *given[2:], scale=0.3, **case)
        for a, b in zip(found, grads, strict=True):
            torch.testing.assert_close(a.cpu().double(), b, rtol=5 * slack, atol=5 * slack)


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(name: str) -> None:
    agree(*prepared(CASES[name]))


def test_sixteen_bits() -> None:
    agree(*prepared({"sizes": (1, 4, 2, 19, 19, 24, 16)}), slack=4e-3, dtype=torch.float16)


def test_long_lists_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every query selects the first block; its list is cut into segments of four, others fit into one."""
    tensors, blocks, case = prepared({"sizes": (1, 2, 1, 30, 90, 16, 16), "q_offset": 60, "entries": 1})
    blocks[..., 4:, 0] = torch.where(torch.arange(26) % 5 > 0, 0, blocks[..., 4:, 0])
    monkeypatch.setattr(kernels, "SEGMENT", 4)
    monkeypatch.setattr(kernels, "LONG", 0)
    agree(tensors, blocks, case)


def test_strided_inputs() -> None:
    tensors, blocks, case = prepared({})
    blocks = blocks.transpose(1, 2).contiguous().transpose(1, 2)  # [B, L, Hkv, n], as some have it
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2).to(DEVICE) for t in tensors)
    found, lse = kernels.forward(q, k, v, blocks.to(DEVICE), scale=0.3, **case)
    assert found.stride() == q.stride()
    expected = reference.selected_attention(*tensors, blocks, scale=0.3, **case)[0]
    torch.testing.assert_close(found.cpu().double(), expected, rtol=2e-5, atol=2e-5)
    one = torch.ones((), device=DEVICE).expand(found.shape)  # a gradient without strides
    grads = kernels.backward(one, None, q, k, v, found, lse, blocks.to(DEVICE), scale=0.3, **case)
    again = kernels.backward(one.contiguous(), None, q, k, v, found, lse, blocks.to(DEVICE), scale=0.3, **case)
    assert grads[0].stride() == q.stride()
    assert all(torch.equal(a, b) for a, b in zip(grads, again, strict=True))


def test_numbers_at_invisible_keys_are_not_read() -> None:
    tensors, _, case = prepared({"sizes": (1, 2, 1, 37, 37, 16, 16)})
    q, k, v = (t.to(DEVICE) for t in tensors)
    blocks = torch.tensor([0, 2], dtype=torch.int32, device=DEVICE).expand(1, 1, 37, 2).contiguous()
    expected, _ = kernels.forward(q, k, v, blocks, scale=0.3, **case)
    for t, bad in ((k, float("nan")), (v, float("inf"))):
        t[:, :, 16:32], t[:, :, 35:] = bad, bad
    found, lse = kernels.forward(q, k, v, blocks, scale=0.3, **case)
    assert torch.equal(found[:, :, :35], expected[:, :, :35])
    grad = torch.ones_like(found)
    grad_q, _, _ = kernels.backward(grad, None, q, k, v, found, lse, blocks, scale=0.3, **case)
    assert bool(grad_q[:, :, :35].isfinite().all())
