"""What must hold whatever the kernels: dropout that vanishes, the order of a batch, keys that are cut anywhere."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_flexattn import flex_attention, masks, merge_attention, scores

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
    ),
]


def drawn(device: str, batch: int = 2, length: int = 60, keys: int = 60, seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    shapes = (batch, 4, length, 16), (batch, 2, keys, 16), (batch, 2, keys, 16)
    return [torch.randn(shape, generator=draw).to(device).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_vanishes_with_its_share(device: str) -> None:
    """Outputs and gradients come to those without dropout; at 1e-3 they are still apart, so it was there."""
    q, k, v = drawn(device)
    options = {"block_mask": masks.causal(), "score_mod": scores.alibi(4).to(device), "enable_gqa": True}

    def results(**dropout: float) -> list[Tensor]:
        out = flex_attention(q, k, v, **options, **dropout)
        return [out, *torch.autograd.grad(out.sin().sum(), [q, k, v])]

    whole, far = results(), []
    for share in (1e-3, 1e-5, 1e-7):
        far.append(max(float((a - b).detach().abs().max()) for a, b in zip(results(dropout_p=share, seed=1), whole)))
    assert far[0] > 1e-4
    assert far[2] < 1e-5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("length", [1, 60])
def test_a_batch_in_another_order_gives_its_results_in_that_order(device: str, length: int) -> None:
    """Bit for bit, but for gradients of queries, which a GPU sums in no order."""
    inputs = drawn(device, batch=5, length=length)
    order = torch.tensor([3, 0, 4, 2, 1], device=device)
    lens = torch.tensor([60, 7, 33, 60, 12], device=device)
    mask, bias = masks.sliding_window(70), scores.alibi(4).to(device)

    def results(q: Tensor, k: Tensor, v: Tensor, lens: Tensor) -> list[Tensor]:
        options = {"kv_lens": lens, "enable_gqa": True, "return_lse": True, "q_offset": 60 - length}
        out, lse = flex_attention(q, k, v, bias, mask, **options)
        return [out, lse, *torch.autograd.grad(out.sin().sum() + lse.square().sum(), [q, k, v])[1:]]

    plain = results(*inputs, lens)
    moved = results(*(t.detach()[order].requires_grad_() for t in inputs), lens[order])
    for a, b in zip(plain, moved):
        assert torch.equal(a[order], b)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(6))
def test_keys_cut_anywhere_and_merged_are_the_whole(device: str, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    keys, parts = int(torch.randint(40, 200, (), generator=draw)), int(torch.randint(2, 7, (), generator=draw))
    cuts = torch.randint(0, keys + 1, (parts - 1,), generator=draw).sort().values.tolist()
    q, k, v = drawn(device, length=37, keys=keys, seed=seed)
    mask = masks.sliding_window(50) | masks.prefix_lm(3)
    bias = scores.alibi(4).to(device)

    def part(first: int, last: int) -> tuple[Tensor, Tensor]:
        seen = mask.shift(q=keys - 37, kv=first)
        there = bias_at(bias, keys - 37, first)
        return flex_attention(
            q, k[:, :, first:last], v[:, :, first:last], there, seen, enable_gqa=True, return_lse=True
        )

    whole, lse = part(0, keys)
    merged, total = merge_attention([part(*ends) for ends in zip([0, *cuts], [*cuts, keys])])
    torch.testing.assert_close(merged, whole, atol=1e-5, rtol=2e-5)
    torch.testing.assert_close(total, lse, atol=1e-5, rtol=2e-5)
    found, wanted = (
        torch.autograd.grad(out.sin().sum() + sums.square().sum(), [q, k, v])
        for out, sums in ((merged, total), (whole, lse))
    )
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b, atol=5e-5, rtol=5e-5)


def bias_at(bias, query: int, key: int):
    """A bias seen by queries and keys that are numbered from elsewhere."""
    return lambda s, b, h, q_idx, kv_idx: bias(s, b, h, q_idx + query, kv_idx + key)
