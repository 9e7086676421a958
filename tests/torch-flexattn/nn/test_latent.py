"""Both forms of multi-head latent attention are one, and the formula."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch_flexattn import masks
from torch_flexattn.nn import MultiheadLatentAttention
from torch_flexattn.nn.rotary import frequencies, rotate

B, L, E, H, R, NOPE, ROPE, V = 2, 7, 20, 3, 10, 6, 4, 5


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(B, L, E)


def layer(**options) -> MultiheadLatentAttention:
    torch.manual_seed(1)
    return MultiheadLatentAttention(E, H, R, qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE, v_head_dim=V, **options)


@pytest.mark.parametrize("rank", [None, 8])
def test_it_is_the_formula(x, rank):
    module = layer(q_lora_rank=rank)
    turned = frequencies(ROPE, 10000.0, None, x)
    q = (module.q_proj(x if rank is None else module.q_a_norm(module.q_a_proj(x)))).view(B, L, H, NOPE + ROPE)
    latent, key = module.kv_a_proj(x).split([R, ROPE], -1)
    expanded = module.kv_b_proj(module.kv_a_norm(latent)).view(B, L, H, NOPE + V)
    place = torch.arange(L)
    q = torch.cat([q[..., :NOPE], rotate(q[..., NOPE:].transpose(1, 2), place, turned).transpose(1, 2)], -1)
    key = rotate(key.unsqueeze(1), place, turned).transpose(1, 2).expand(-1, -1, H, -1)
    k, v = torch.cat([expanded[..., :NOPE], key], -1), expanded[..., NOPE:]
    out = scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
    torch.testing.assert_close(module(x), module.o_proj(out.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("options", [{}, {"q_lora_rank": 8, "causal": False}])
def test_both_forms_have_equal_results_and_gradients(x, options):
    module = layer(**options).double()
    x = x.double()
    found = []
    for form in (False, True):
        out = module(x, absorbed=form)
        found.append((out, *torch.autograd.grad(out.square().sum(), module.parameters())))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("absorbed", [None, False])
@pytest.mark.parametrize("chunks", [[1] * L, [4, 3]])
def test_decoding_gives_what_training_gives(x, absorbed, chunks):
    module = layer()
    cache = module.new_cache(B, max_length=L + 1)
    out = torch.cat([module(part, cache=cache, absorbed=absorbed) for part in x.split(chunks, 1)], 1)
    torch.testing.assert_close(out, module(x))
    assert cache.keys.shape == (B, 1, L + 1, R + ROPE)
    assert cache.values.numel() == 0


def test_a_mask_of_a_call_applies_beside(x):
    module = layer()
    positions = torch.tensor([0, 1, 2, 0, 1, 2, 3])
    found = module(x, mask_mod=masks.document([0, 3, L]), positions=positions)
    torch.testing.assert_close(found, torch.cat([module(x[:, :3]), module(x[:, 3:])], 1))
