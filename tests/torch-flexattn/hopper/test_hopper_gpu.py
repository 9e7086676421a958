"""The kernels of Hopper GPUs against the reference in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_flexattn import AuxRequest, create_block_mask, flex_attention, mask_mod, masks, reference, score_mod, scores

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")]
SHAPES = {  # batch, heads, heads of keys, queries, keys, features, features of values
    "plain": (2, 4, 4, 1000, 1000, 128, 128),
    "grouped": (1, 6, 2, 300, 700, 64, 64),
    "96": (1, 2, 2, 257, 513, 96, 96),
    "odd": (1, 2, 2, 200, 333, 72, 40),
    "80": (2, 2, 2, 1024, 1024, 80, 80),
    "one head of keys": (2, 4, 1, 512, 384, 128, 64),
    "narrow": (1, 2, 2, 640, 640, 32, 128),
    "192": (1, 4, 2, 400, 640, 192, 192),
    "192 and 128": (1, 2, 2, 512, 512, 192, 128),
    "160 and 144": (1, 2, 1, 384, 384, 160, 144),
    "256": (1, 2, 2, 640, 333, 256, 256),
}
MASKS = ("none", "causal", "documents", "empty rows")
SCORES = (
    "none",
    "softcap",
    "table",
    "table turned",
    "of a head",
    "of a key",
    "of a query",
    "one number",
    "pairs",
    "hashed",
)


def mask_named(name: str, length: int) -> Any:
    documents = (torch.arange(length, device="cuda") // 77).int()
    return {
        "none": None,
        "causal": masks.causal(),
        "documents": masks.causal() & mask_mod(lambda b, h, q, kv: documents[q] == documents[kv]),
        "empty rows": mask_mod(lambda b, h, q, kv: (q > kv) & (q % 3 != 1)),
    }[name]


def score_named(name: str, heads: int, queries: int, keys: int, batch: int) -> tuple[Any, Tensor | None]:
    """A score modification, and the tensor that it captures."""
    generator = torch.Generator("cuda").manual_seed(1)

    def learnt(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda").requires_grad_()

    total = queries + keys
    table, short, head, key = learnt(heads, total), learnt(heads, total), learnt(heads), learnt(keys)
    query, one, pairs = learnt(heads, queries), learnt(), learnt(batch, heads, queries, keys)
    captured: dict[str, tuple[Callable | Any, Tensor | None]] = {
        "none": (None, None),
        "softcap": (scores.softcap(20.0), None),
        "table": (lambda s, b, h, q, kv: s + table[h, q - kv + keys], table),
        "table turned": (lambda s, b, h, q, kv: s * short[h, kv - q], short),  # negative indices wrap
        "of a head": (lambda s, b, h, q, kv: s * head[h], head),
        "of a key": (lambda s, b, h, q, kv: s + torch.sin(key[kv]), key),
        "of a query": (lambda s, b, h, q, kv: s * query[h, q], query),
        "one number": (lambda s, b, h, q, kv: s * one, one),
        "pairs": (lambda s, b, h, q, kv: s + pairs[b, h, q, kv], pairs),
        "hashed": (lambda s, b, h, q, kv: s + key[(q * 31 + kv * 17) % keys], key),
    }
    mod, tensor = captured[name]
    return (None if mod is None else score_mod(mod)), tensor


CASES = [(s, m, x) for s in SHAPES for m, x in [("none", "none"), ("causal", "softcap"), ("causal", "table")]]
CASES += [("plain", m, "none") for m in MASKS] + [("grouped", m, "none") for m in MASKS]
CASES += [(s, "causal", x) for s in ("plain", "odd", "192") for x in SCORES[3:]]


@pytest.fixture(params=list(dict.fromkeys(CASES)), ids=lambda c: ", ".join(c))
def case(request: pytest.FixtureRequest) -> SimpleNamespace:
    shape, mask, score = request.param
    batch, heads, kv_heads, queries, keys, width, width_v = SHAPES[shape]
    torch.manual_seed(0)
    q = torch.randn(batch, queries, heads, width, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    k = torch.randn(batch, kv_heads, keys, width, device="cuda", dtype=torch.bfloat16)
    v = torch.randn(batch, kv_heads, keys, width_v, device="cuda", dtype=torch.bfloat16)
    mod, captured = score_named(score, heads, queries, keys, batch)
    of_mask = mask_named(mask, max(queries, keys))
    blocks = None if of_mask is None else create_block_mask(of_mask, None, None, queries, keys, device="cuda")
    sinks = torch.randn(heads, device="cuda").requires_grad_() if (mask, score) == ("causal", "none") else None
    options = {"scale": 1 / math.sqrt(width), "sinks": sinks}
    return SimpleNamespace(q=q, k=k, v=v, score=mod, mask=of_mask, blocks=blocks, captured=captured, options=options)


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert torch.equal(found.isinf(), expected.isinf())
    finite = ~expected.isinf()
    error = (found[finite].double() - expected[finite].double()).abs().max()
    assert error <= tolerance * max(float(expected[finite].abs().max()), 1e-3)


def run(case: SimpleNamespace) -> tuple[Tensor, Tensor, Tensor]:
    from torch_flexattn.kernels.hopper import attention

    assert attention.serves_forward(case.q, case.k, case.v, case.blocks, None, 0.0)
    return attention.forward(case.q, case.k, case.v, mask=case.blocks, score=case.score, **case.options)


def test_forward(case: SimpleNamespace) -> None:
    out, lse, largest = run(case)
    expected = reference.attention(case.q, case.k, case.v, score_mod=case.score, mask_mod=case.mask, **case.options)
    for found, right, tolerance in zip((out, lse, largest), expected, (0.01, 1e-3, 1e-3), strict=True):
        close(found, right, tolerance)


def test_backward(case: SimpleNamespace) -> None:
    from torch_flexattn.kernels.hopper import attention

    q, k, v = (t.double().requires_grad_() for t in (case.q, case.k, case.v))
    right, right_lse, _ = reference.attention(q, k, v, score_mod=case.score, mask_mod=case.mask, **case.options)
    grad_out = torch.randn(right.shape, device="cuda").bfloat16()
    grad_lse = torch.randn(right_lse.shape, device="cuda").masked_fill_(right_lse.isinf(), 0)
    loss = (right * grad_out).sum() + (right_lse.masked_fill(right_lse.isinf(), 0) * grad_lse).sum()
    sinks = case.options["sinks"]
    others = [t for t in (case.captured, sinks) if t is not None]
    expected = torch.autograd.grad(loss, [q, k, v, *others])
    out, lse, _ = run(case)
    assert attention.serves_backward(grad_out, case.q, case.k, case.v, case.blocks, None, 0.0)
    inputs = (grad_out, grad_lse, case.q, case.k, case.v, out, lse)
    *found, of_captures, of_sinks = attention.backward(*inputs, mask=case.blocks, score=case.score, **case.options)
    found += [g for g in (*of_captures, of_sinks) if g is not None]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        close(one, other, 0.02)


@pytest.mark.parametrize("scale", [-0.1, 0.0, 0.1])
@pytest.mark.parametrize("cap", [None, -3.0, 3.0])
def test_numbers_of_either_sign(cap: float | None, scale: float) -> None:
    """What multiplies a score last is not always positive."""
    q, k, v = (torch.randn(1, 2, 300, 64, device="cuda").bfloat16() for _ in range(3))
    score = None if cap is None else score_mod(lambda s, b, h, i, j: cap * torch.tanh(s / 2))
    found = flex_attention(q, k, v, score, mask_mod=masks.causal(), scale=scale, backend="hopper", return_lse=True)
    right = reference.attention(q, k, v, score_mod=score, mask_mod=masks.causal(), scale=scale)
    close(found[0], right[0], 0.01)
    close(found[1], right[1], 1e-3)


def test_a_quick_soft_cap() -> None:
    """Off by up to 2⁻¹¹ of a score, in both directions alike."""
    q, k, v = (torch.randn(1, 2, 400, 64, device="cuda").bfloat16().requires_grad_() for _ in range(3))
    grad, results = torch.randn(1, 2, 400, 64, device="cuda").bfloat16(), []
    for approx in (False, True):
        out, lse = flex_attention(
            q, k, v, scores.softcap(5.0, approx=approx), mask_mod=masks.causal(), scale=1.0, return_lse=True
        )
        results.append([lse, out, *torch.autograd.grad(out, (q, k, v), grad)])
    assert not torch.equal(results[0][0], results[1][0])  # another instruction
    close(results[1][0], results[0][0], 2e-3)
    for found, right in zip(results[1][1:], results[0][1:], strict=True):
        close(found, right, 0.02)


@pytest.mark.parametrize("cap", [5.0, 50.0, 60.0])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_at_their_cap(cap: float, sign: int, dtype: torch.dtype) -> None:
    """Near enough to 0 they are summed without a running maximum; here all of a row lie at one end, or at both."""
    q, k, v = (torch.randn(1, 2, 400, 64, device="cuda").to(dtype) for _ in range(3))
    q[..., 0], k[..., 0] = 100.0 * sign, 100.0
    k[:, :, ::7, 0] = -100.0
    k[:, 1, :, 0] = 100.0
    mods = {"score_mod": scores.softcap(cap), "mask_mod": masks.causal()}
    sinks = torch.tensor([0.3, -cap * 2], device="cuda")
    aux = AuxRequest(lse=True, max_scores=True)
    out, found = flex_attention(q, k, v, **mods, sinks=sinks, backend="hopper", return_aux=aux)
    right, lse, largest = reference.attention(q, k, v, **mods, sinks=sinks)
    close(out, right, 0.01)
    close(found.lse, lse, 1e-3)
    close(found.max_scores, largest, 1e-3)
    close(flex_attention(q, k, v, **mods, sinks=sinks, backend="hopper"), right, 0.01)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_soft_caps_keep_what_is_no_number_to_its_row(bad: float) -> None:
    """Neighbouring scores share a reciprocal: hidden keys and other rows must not notice."""
    q, k, v = (torch.randn(1, 1, 256, 64, device="cuda").bfloat16() for _ in range(3))
    right = flex_attention(q, k, v, scores.softcap(5.0), mask_mod=masks.causal())
    q[0, 0, 70], k[0, 0, 201] = bad, bad  # its neighbour 200 is seen by query 200, which does not see 201
    found = flex_attention(q, k, v, scores.softcap(5.0), mask_mod=masks.causal())
    whole = torch.ones(256, dtype=torch.bool)
    whole[70] = whole[201:] = False
    torch.testing.assert_close(found[0, 0, whole], right[0, 0, whole], rtol=0, atol=1e-2)
    assert found[0, 0, 70].isnan().all()
    assert found[0, 0, 201:].isnan().all()
