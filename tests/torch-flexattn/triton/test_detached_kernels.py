"""What a score modification takes out of the gradient, in generated kernels."""

from __future__ import annotations

import torch
from torch_flexattn import flex_attention, masks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_no_gradient_goes_through_what_is_detached() -> None:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 24, 16, generator=draw).to(DEVICE).requires_grad_() for _ in range(3))
    table = torch.randn(2, 24, generator=draw).to(DEVICE).requires_grad_()

    def mod(score, b, h, q_idx, kv_idx):
        rounded = score + (torch.round(score) - score).detach()
        return rounded * table[h, q_idx].detach() + table[h, kv_idx] + 1e-3 * (q_idx - kv_idx) ** 3

    found = []
    for backend in ("triton", "reference"):
        out = flex_attention(q, k, v, mod, masks.causal(), backend=backend, check=False)
        found.append([out, *torch.autograd.grad(out.sin().sum(), [q, k, v, table])])
    for got, right in zip(*found, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=2e-5)
