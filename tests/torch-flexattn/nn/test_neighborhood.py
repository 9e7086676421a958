"""Neighbourhood attention of modules is attention under the dense mask of the window."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.functional import scaled_dot_product_attention
from torch_flexattn import create_mask, masks
from torch_flexattn.nn import NeighborhoodAttention1d, NeighborhoodAttention2d, NeighborhoodAttention3d

CASES = [
    (NeighborhoodAttention1d, masks.natten1d, (11,), {"kernel_size": 3, "dilation": 2}),
    (NeighborhoodAttention2d, masks.natten2d, (4, 6), {"kernel_size": (3, 5), "is_causal": (True, False)}),
    (NeighborhoodAttention3d, masks.natten3d, (3, 4, 5), {"kernel_size": 3, "stride": (1, 1, 2)}),
]


@pytest.mark.parametrize("kind,factory,shape,options", CASES)
def test_it_is_attention_under_the_dense_mask(kind, factory, shape, options):
    torch.manual_seed(0)
    module, x = kind(12, 3, **options), torch.randn(2, *shape, 12)
    tokens = x[0, ..., 0].numel()
    kernel, others = options["kernel_size"], {name: o for name, o in options.items() if name != "kernel_size"}
    mask = factory(shape, kernel, **others)
    q, k, v = module.qkv(x.view(2, tokens, 12)).view(2, tokens, 3, 3, 4).permute(2, 0, 3, 1, 4)
    out = scaled_dot_product_attention(q, k, v, attn_mask=create_mask(mask, None, None, tokens, tokens))
    torch.testing.assert_close(module(x), module.proj(out.transpose(1, 2).flatten(2)).view(x.shape))


def test_other_grids_take_one_graph_more_and_then_none():
    module = NeighborhoodAttention2d(8, 2, kernel_size=3)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    fast, counts = torch.compile(module, fullgraph=True, backend=counter), []
    for shape in ((4, 7), (5, 7), (6, 7), (9, 7)):
        x = torch.randn(1, *shape, 8)
        torch.testing.assert_close(fast(x), module(x))
        counts.append(counter.frame_count)
    assert counts == [1, 2, 2, 2]


def test_wrong_sizes_are_named():
    with pytest.raises(ValueError, match=r"kernel_size\[1\] must be .* got 0"):
        NeighborhoodAttention2d(8, 2, kernel_size=(3, 0))
    with pytest.raises(ValueError, match="stride must not exceed kernel, got 4 > 3"):
        NeighborhoodAttention1d(8, 2, kernel_size=3, stride=4)
    with pytest.raises(ValueError, match=r"x must have the shape \[B, height, width, 8\], got \(1, 4, 8\)"):
        NeighborhoodAttention2d(8, 2, kernel_size=3)(torch.ones(1, 4, 8))
    with pytest.raises(ValueError, match="3 · 1 > 2"):
        NeighborhoodAttention1d(8, 2, kernel_size=3)(torch.ones(1, 2, 8))
