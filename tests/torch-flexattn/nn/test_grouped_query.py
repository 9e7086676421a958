"""GroupedQueryAttention against a few dense lines, and step by step against at once."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch_flexattn import masks
from torch_flexattn.nn import GroupedQueryAttention, KVCache, RopeScaling
from torch_flexattn.nn.rotary import frequencies, rotate

B, L, E, H, G, D = 2, 9, 24, 6, 2, 8


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(B, L, E)


def layer(**options) -> GroupedQueryAttention:
    torch.manual_seed(1)
    return GroupedQueryAttention(E, H, G, D, **options)


def dense(module: GroupedQueryAttention, x: torch.Tensor, seen: torch.Tensor, turned: torch.Tensor) -> torch.Tensor:
    """What the module means: complex numbers turned, keys repeated, PyTorch's attention."""
    q, k, v = (p(x).unflatten(2, (-1, D)).transpose(1, 2) for p in (module.q_proj, module.k_proj, module.v_proj))
    if module.q_norm is not None:
        q, k = (t * torch.rsqrt(t.square().mean(-1, keepdim=True) + torch.finfo(t.dtype).eps) for t in (q, k))
    angles = torch.arange(L).unsqueeze(1) * turned
    turn = torch.polar(torch.ones_like(angles), angles)
    pairs = [torch.complex(*t.chunk(2, -1)) * turn for t in (q, k)]
    q, k = (torch.cat([t.real, t.imag], -1) for t in pairs)
    k, v = (t.repeat_interleave(H // G, 1) for t in (k, v))
    return module.o_proj(scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("window", [None, 3])
def test_it_is_the_dense_formula(x, qk_norm, window):
    module = layer(qk_norm=qk_norm, window=window)
    i = torch.arange(L)
    seen = (i[:, None] >= i) & (i[:, None] - i < (window or L))
    turned = 10000.0 ** (-torch.arange(0, D, 2) / D)
    torch.testing.assert_close(module(x), dense(module, x, seen, turned))


def test_without_causality_and_rotation_the_order_does_not_matter(x):
    module, order = layer(causal=False, rope_base=None), torch.randperm(L)
    torch.testing.assert_close(module(x[:, order]), module(x)[:, order])
    assert not torch.allclose(layer(causal=False)(x[:, order]), layer(causal=False)(x)[:, order])


def test_a_window_without_causality_has_two_sides(x):
    module = layer(causal=False, window=2, rope_base=None)
    changed = x.clone()
    changed[:, 5] += 1
    differs = (module(x) - module(changed)).abs().amax((0, 2)) > 1e-6
    assert differs.nonzero().flatten().tolist() == [4, 5, 6]


@pytest.mark.parametrize("options", [{}, {"window": 3, "sinks": True, "qk_norm": True}])
@pytest.mark.parametrize("chunks", [[1] * L, [4, 1, 3, 1], [L]])
def test_decoding_gives_what_training_gives(x, options, chunks):
    module = layer(**options)
    if module.sinks is not None:
        torch.nn.init.normal_(module.sinks)
    cache = KVCache(B, G, max_length=L + 2, head_dim=D)
    out = torch.cat([module(part, cache=cache) for part in x.split(chunks, 1)], 1)
    torch.testing.assert_close(out, module(x))
    assert cache.lengths.tolist() == [L, L]


def test_prompts_of_different_lengths_share_a_cache(x):
    module, cache = layer(), KVCache(B, G, max_length=L, head_dim=D)
    counts = torch.tensor([5, 2])
    prompt = module(x[:, :5], cache=cache, counts=counts)
    alone = [module(x[b : b + 1, : counts[b]]) for b in range(B)]
    for b in range(B):
        torch.testing.assert_close(prompt[b, : counts[b]], alone[b][0])
    step = torch.stack([x[0, 5], x[1, 2]]).unsqueeze(1)
    found = module(step, cache=cache)
    torch.testing.assert_close(found[0, 0], module(x[:1, :6])[0, 5])
    torch.testing.assert_close(found[1, 0], module(x[1:, :3])[0, 2])


def test_without_causality_a_step_sees_what_the_cache_holds_and_no_more(x):
    module, cache = layer(causal=False), KVCache(B, G, max_length=L, head_dim=D)
    torch.testing.assert_close(module(x[:, :4], cache=cache), module(x[:, :4]))
    torch.testing.assert_close(module(x[:, 4:6], cache=cache), module(x[:, :6])[:, 4:])


def test_documents_of_a_row_are_told_apart_by_mask_and_positions(x):
    module, bounds = layer(), torch.tensor([0, 4, L])
    positions = torch.cat([torch.arange(4), torch.arange(L - 4)])
    found = module(x, mask_mod=masks.document(bounds), positions=positions)
    torch.testing.assert_close(found, torch.cat([module(x[:, :4]), module(x[:, 4:])], 1))


def test_every_parameter_gets_a_gradient(x):
    module = layer(qk_norm=True, sinks=True)
    module(x).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in module.parameters())


def test_dropout_only_in_training(x):
    module = layer(dropout=0.5)
    assert not torch.equal(module(x), module(x))
    module.eval()
    assert torch.equal(module(x), module(x))


def test_scores_depend_on_distances_alone():
    torch.manual_seed(0)
    q, k, turned = torch.randn(1, 1, 1, D), torch.randn(1, 1, 1, D), frequencies(D, 10000.0, None, torch.ones(1))

    def score(i: int, j: int) -> torch.Tensor:
        return (rotate(q, torch.tensor([i]), turned) * rotate(k, torch.tensor([j]), turned)).sum()

    torch.testing.assert_close(score(3, 1), score(1003, 1001), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(score(4, 4), (q * k).sum())


def test_scaled_frequencies():
    one, plain = torch.ones(1, dtype=torch.float64), 10000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    torch.testing.assert_close(frequencies(D, 10000.0, None, one), plain)
    torch.testing.assert_close(frequencies(D, 10000.0, RopeScaling("linear", 4.0), one), plain / 4)
    ntk = frequencies(D, 10000.0, RopeScaling("ntk", 4.0), one)
    torch.testing.assert_close(ntk[0], plain[0])
    torch.testing.assert_close(ntk[-1], plain[-1] / 4)  # the longest wave is stretched by the factor
    scaled = frequencies(64, 500000.0, RopeScaling("llama3", 8.0, trained_length=8192), one)
    plain = 500000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    wave = 2 * torch.pi / plain
    torch.testing.assert_close(scaled[wave < 8192 / 4], plain[wave < 8192 / 4])
    torch.testing.assert_close(scaled[wave > 8192], plain[wave > 8192] / 8)
    between = (wave > 8192 / 4) & (wave < 8192)
    assert bool(((scaled < plain) & (scaled > plain / 8))[between].all())
    assert bool(between.any())


def test_the_cache_says_when_it_is_full_and_forgets():
    cache = KVCache(1, 1, max_length=3, head_dim=2)
    ones = torch.ones(1, 1, 2, 2)
    cache.append(ones, ones)
    with pytest.raises(ValueError, match="4 tokens, and max_length is 3"):
        cache.append(ones, ones)
    assert cache.lengths.tolist() == [2]
    cache.reset()
    assert cache.append(2 * ones, ones).tolist() == [0]
    assert cache.keys[0, 0, :, 0].tolist() == [2, 2, 0]
    with pytest.raises(ValueError, match=r"k must have the shape \(1, 1, L, 2\) .* got \(1, 2, 1, 2\)"):
        cache.append(torch.ones(1, 2, 1, 2), ones)


def test_compiled_steps_of_decoding(x):
    module = layer()
    torch._dynamo.reset()
    fast, cache = torch.compile(module, fullgraph=True, backend="aot_eager"), KVCache(B, G, max_length=L, head_dim=D)
    with torch.no_grad():
        out = torch.cat([fast(part, cache=cache) for part in x.split(1, 1)], 1)
        torch.testing.assert_close(out, module(x))


def test_inference_mode(x):
    module = layer()
    with torch.inference_mode():
        cache = KVCache(B, G, max_length=L, head_dim=D)
        out = torch.cat([module(x[:, n : n + 1], cache=cache) for n in range(L)], 1)
    torch.testing.assert_close(out, module(x).detach())
