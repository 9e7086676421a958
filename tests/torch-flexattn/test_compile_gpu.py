"""Functions inside ``torch.compile(fullgraph=True)`` on a GPU, compiled by Inductor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_flexattn import create_block_mask, flex_attention, flex_attention_varlen, masks

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
LENGTHS = (256, 384, 300)


def qkv(length: int) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    made = torch.randn(3, 2, 4, length, 64, generator=generator).to("cuda", torch.bfloat16)
    return made.requires_grad_()


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.float(), expected.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("made", ["outside", "inside"])
def test_functions_with_gradients_of_what_they_capture(made: str, mode: str | None) -> None:
    bias = nn.Parameter(torch.randn(4, 512, device="cuda"))
    window = 100
    score: Any = lambda s, b, h, i, j: s + bias[h, j]  # noqa: E731
    mask: Any = lambda b, h, i, j: (i >= j) & (i - j < window)  # noqa: E731

    def attend(x: Tensor) -> Tensor:
        q, k, v = x.unbind(0)
        if made == "outside":
            return flex_attention(q, k, v, score, mask)
        shift = bias * 2
        seen = masks.causal() & masks.sliding_window(window)
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + shift[h, j], seen)

    torch._dynamo.reset()
    compiled = torch.compile(attend, fullgraph=True, mode=mode)
    for length in LENGTHS:
        x = qkv(length)
        found, expected = compiled(x).clone(), attend(x)
        close(found, expected)
        for a, b in zip(*(torch.autograd.grad(out.float().sum(), (x, bias)) for out in (found, expected)), strict=True):
            close(a / b.abs().amax(), b / b.abs().amax())


def test_block_masks_of_new_lengths_and_packed_sequences() -> None:
    torch._dynamo.reset()
    attend = torch.compile(lambda q, k, v, m: flex_attention(q, k, v, block_mask=m), fullgraph=True)
    packed = torch.compile(
        lambda q, k, v, starts: flex_attention_varlen(q, k, v, starts, starts, mask_mod=lambda b, h, i, j: i >= j),
        fullgraph=True,
    )
    for length in LENGTHS:
        q, k, v = qkv(length).detach().unbind(0)
        mask = create_block_mask(masks.causal(), None, None, length, length, device="cuda")
        close(attend(q, k, v, mask), flex_attention(q, k, v, mask_mod=masks.causal()))
        rows = [t[0].transpose(0, 1) for t in (q, k, v)]
        starts = torch.tensor([0, 100, length], device="cuda")
        close(packed(*rows, starts), flex_attention_varlen(*rows, starts, starts, mask_mod=masks.causal()))
