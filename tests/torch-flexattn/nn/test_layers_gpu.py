"""Layers on a GPU compute what they compute on a CPU."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import Tensor, nn
from torch_flexattn import flex_attention, masks, scores, stats
from torch_flexattn.nn import (
    FlexMultiheadAttention,
    GroupedQueryAttention,
    KVCache,
    MultiheadLatentAttention,
    NativeSparseAttention,
    NeighborhoodAttention2d,
    T5RelativeBias,
)

pytestmark = pytest.mark.gpu
B, L, E = 2, 150, 64


def agree(module: nn.Module, x: Tensor, *, call=lambda module, x: module(x), dtype=torch.float32) -> None:
    """Outputs and gradients on both devices; in low precision to a few of its digits."""
    on_gpu = copy.deepcopy(module).to("cuda", dtype)
    expected, found = call(module, x), call(on_gpu, x.to("cuda", dtype))
    rtol, atol = (1e-3, 1e-4) if dtype == torch.float32 else (5e-2, 3e-2)
    torch.testing.assert_close(found.cpu().float(), expected, rtol=rtol, atol=atol)
    grads = [
        torch.autograd.grad(out.float().square().mean(), m.parameters())
        for out, m in ((expected, module), (found, on_gpu))
    ]
    for a, b in zip(*grads):
        torch.testing.assert_close(b.cpu().float(), a, rtol=10 * rtol, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("table", ["none", "bool", "float"])
def test_multi_head_attention(dtype, table):
    torch.manual_seed(0)
    mods = {"mask_mod": masks.sliding_window(40), "score_mod": scores.softcap(5.0)}
    layer = FlexMultiheadAttention(E, 4, batch_first=True, **mods)
    hidden = torch.rand(L, L) > 0.8
    mask = {"none": None, "bool": hidden, "float": torch.zeros(L, L).masked_fill(hidden, -torch.inf)}[table]

    def call(module, x):
        given = None if mask is None else mask.to(x.device)
        return module(x, x, x, attn_mask=given, need_weights=False)[0]

    agree(layer, torch.randn(B, L, E), call=call, dtype=dtype)
    assert stats().kernel != "cpu"


def absorbing(absorbed: bool, module: nn.Module, x: Tensor) -> Tensor:
    return module(x, absorbed=absorbed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_layers(dtype):
    torch.manual_seed(0)
    x = torch.randn(B, L, E)
    agree(GroupedQueryAttention(E, 8, 2, qk_norm=True, window=50), x, dtype=dtype)
    agree(NeighborhoodAttention2d(E, 4, 5), x.view(B, 10, 15, E), dtype=dtype)
    latent = MultiheadLatentAttention(E, 4, 32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=24)
    for absorbed in (False, True):
        agree(latent, x, call=functools.partial(absorbing, absorbed), dtype=dtype)


@pytest.mark.parametrize("compression", ["mlp", "mean"])
def test_native_sparse_attention(compression):
    """In float32: fewer digits may choose other blocks where weights are close."""
    torch.manual_seed(0)
    layer = NativeSparseAttention(E, 8, 2, compression=compression, num_selected=4, window=40, qk_norm=True)
    agree(layer, torch.randn(B, 400, E))
    assert stats().kernel == "triton"
    trained, x = layer.to("cuda", torch.bfloat16), torch.randn(B, 400, E, device="cuda", dtype=torch.bfloat16)
    trained(x).float().square().mean().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in trained.parameters())


def test_decoding_step_by_step():
    torch.manual_seed(0)
    grouped = GroupedQueryAttention(E, 8, 2, window=20, sinks=True, device="cuda")
    latent = MultiheadLatentAttention(E, 4, 32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=24, device="cuda")
    x = torch.randn(B, 40, E, device="cuda")
    with torch.no_grad():
        for module, cache in (
            (grouped, KVCache(B, 2, 48, 8, device="cuda")),
            (latent, latent.new_cache(B, 48)),
        ):
            out = torch.cat([module(part, cache=cache) for part in x.split([30, *[1] * 10], 1)], 1)
            torch.testing.assert_close(out, module(x), rtol=1e-3, atol=1e-4)


def test_t5_bias_trains():
    torch.manual_seed(0)
    bias = T5RelativeBias(32, 2, device="cuda")
    q = torch.randn(1, 2, L, 16, device="cuda")
    found = torch.autograd.grad(flex_attention(q, q, q, bias.score_mod()).square().sum(), bias.weight)[0]
    dense = ((q @ q.mT / 4 + bias(L, L)).softmax(-1) @ q).square().sum()
    torch.testing.assert_close(found, torch.autograd.grad(dense, bias.weight)[0], rtol=1e-2, atol=1e-2)
