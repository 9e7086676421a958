"""Attention of 8-bit floats on the CPU, their rounding, and what is refused.

Oracle: the dense reference in float64, of the numbers that the 8 bits stand for. Kernels sum in float32, so what is
left is the rounding of the result to bfloat16, 2⁻⁸ of it, and of float32.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_flexattn import (
    AuxRequest,
    InputError,
    KindError,
    UnsupportedError,
    create_block_mask,
    flex_attention,
    flex_attention_varlen,
    masks,
    quantize_fp8,
    reference,
    scores,
)

FP8 = torch.float8_e4m3fn
SINKS = torch.tensor([0.3, -1.0, float("-inf"), 2.0])
TABLE = torch.linspace(-1, 1, 120)

CASES: dict[str, dict[str, Any]] = {
    "everything": {},
    "causal": {"mask_mod": masks.causal()},
    "softcap under a window": {"mask_mod": masks.sliding_window(9), "score_mod": scores.softcap(2.0)},
    "table": {"score_mod": lambda s, b, h, i, j: s + TABLE[i - j + 60]},
    "sinks": {"sinks": SINKS},
    "offsets and lengths": {
        "mask_mod": masks.causal(), "q_offset": torch.tensor([5, 13]), "kv_lens": torch.tensor([30, 50]),
    },
}  # fmt: skip


def drawn(*shape: int, seed: int = 0, spread: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread


def eight_bits(
    sizes: tuple[int, ...] = (2, 4, 2, 37, 50, 16, 24),
) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Tensor], tuple[Tensor, Tensor, Tensor]]:
    """Features in 8 bits, their factors, and what they stand for, in float64."""
    batch, heads, kv_heads, rows, keys, width, width_v = sizes
    whole = (
        drawn(batch, heads, rows, width, spread=3.0), drawn(batch, kv_heads, keys, width, seed=1, spread=0.5),
        drawn(batch, kv_heads, keys, width_v, seed=2),
    )  # fmt: skip
    found = [quantize_fp8(t) for t in whole]
    exact = [t.double() * of[..., None, None].double() for t, of in found]
    factors = {f"{name}_descale": of for name, (_, of) in zip("qkv", found)}
    q, k, v = (t for t, _ in found)
    return (q, k, v), factors, (exact[0], exact[1], exact[2])


def agree(found: Tensor, exact: Tensor, largest_value: float) -> None:
    """To half a place of bfloat16 and what float32 loses."""
    assert found.dtype == torch.bfloat16
    wrong = (found.double() - exact).abs() - exact.abs() * 2.0**-8
    assert float(wrong.max()) <= 1e-5 * largest_value


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rows", [1, 37])
def test_equals_the_reference_of_what_is_stored(name: str, rows: int) -> None:
    inputs, factors, exact = eight_bits((2, 4, 2, rows, 50, 16, 24))
    case = CASES[name]
    out, aux = flex_attention(
        *inputs, **case, **factors, enable_gqa=True, return_aux=AuxRequest(lse=True, max_scores=True)
    )
    right, lse, largest = reference.attention(*exact, **case)
    agree(out, right, float(exact[2].abs().max()))
    torch.testing.assert_close(aux.lse.double(), lse, rtol=0, atol=2e-5)
    torch.testing.assert_close(aux.max_scores.double(), largest, rtol=0, atol=2e-5)


@pytest.mark.parametrize("width_v", [64, 24], ids=["PyTorch's operation", "our steps"])
def test_without_scores_asked_for(width_v: int) -> None:
    inputs, factors, exact = eight_bits((1, 4, 4, 150, 150, 64, width_v))
    out = flex_attention(*inputs, **factors, mask_mod=masks.sliding_window(40))
    agree(out, reference.attention(*exact, mask_mod=masks.sliding_window(40))[0], float(exact[2].abs().max()))


def test_keys_and_values_alone() -> None:
    (_, k, v), factors, (_, exact_k, exact_v) = eight_bits()
    q = drawn(2, 4, 37, 16, seed=5)
    del factors["q_descale"]
    out = flex_attention(q, k, v, enable_gqa=True, mask_mod=masks.causal(), **factors)
    assert out.dtype == torch.float32
    right = reference.attention(q, exact_k, exact_v, mask_mod=masks.causal())[0]
    torch.testing.assert_close(out.double(), right, rtol=0, atol=2e-5)


def test_no_wide_copy_of_keys_is_made() -> None:
    """What is converted at once is a step, not a tensor."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Widest(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if "_to_copy" in str(func) and isinstance(result, Tensor) and result.dtype == torch.float32:
                largest = max(largest, result.numel())
            return result

    q, k, v = (t.to(FP8) for t in (drawn(1, 1, 256, 16), drawn(1, 1, 8192, 16), drawn(1, 1, 8192, 16)))
    from torch_flexattn.kernels import cpu

    with Widest():
        cpu.forward(q, k, v, mask=None, score=scores.softcap(5.0), scale=0.25)
    assert 0 < largest < k.numel()


@pytest.mark.parametrize("shape", [(), (2,), (1, 2), (2, 2)])
def test_factors_of_all_shapes(shape: tuple[int, ...]) -> None:
    (q, k, v), _, _ = eight_bits()
    of = torch.rand(shape, generator=torch.Generator().manual_seed(0)) + 0.5
    out = flex_attention(q, k, v, enable_gqa=True, q_descale=of, k_descale=of, v_descale=of)
    wide = of.double().expand(2, 2)[..., None, None]
    of_queries = wide.repeat_interleave(2, 1)
    right = reference.attention(q.double() * of_queries, k.double() * wide, v.double() * wide)[0]
    agree(out, right, float((v.double() * wide).abs().max()))


def test_of_each_query_head() -> None:
    (q, k, v), factors, exact = eight_bits()
    of = torch.tensor([0.1, 0.2, 0.3, 0.4])
    out = flex_attention(q, k, v, enable_gqa=True, **{**factors, "q_descale": of})
    right = reference.attention(q.double() * of.double()[:, None, None], *exact[1:])[0]
    agree(out, right, float(exact[2].abs().max()))


def test_factors_of_an_earlier_call_are_not_used_again() -> None:
    """Calls like one before are remembered, but for these."""
    inputs, factors, exact = eight_bits()
    for times in (1.0, 0.5, 1.0):
        for _ in range(2):
            scaled = {**factors, "v_descale": factors["v_descale"] * times}
            out = flex_attention(*inputs, enable_gqa=True, **scaled)
            agree(out, reference.attention(*exact)[0] * times, float(exact[2].abs().max()))


def test_the_dense_backend_says_the_same() -> None:
    inputs, factors, exact = eight_bits()
    out = flex_attention(*inputs, enable_gqa=True, backend="reference", **factors)
    agree(out, reference.attention(*exact)[0], float(exact[2].abs().max()))


def test_packed_sequences() -> None:
    (q, k, v), factors, exact = eight_bits((1, 2, 2, 50, 50, 16, 16))
    starts = torch.tensor([0, 20, 50])
    of_heads = {name: of[0] for name, of in factors.items()}
    packed = [t[0].transpose(0, 1) for t in (q, k, v)]
    out = flex_attention_varlen(*packed, starts, starts, mask_mod=masks.causal(), **of_heads)
    for start, stop in ((0, 20), (20, 50)):
        part = reference.attention(*(t[:, :, start:stop] for t in exact), mask_mod=masks.causal())[0]
        agree(out[start:stop].transpose(0, 1)[None], part, float(exact[2].abs().max()))


def test_nan_in_a_key_that_nobody_sees() -> None:
    (q, k, v), factors, exact = eight_bits()
    for t in (k, v):
        t.view(torch.uint8)[:, :, 40:] = 0x7F
    out = flex_attention(q, k, v, enable_gqa=True, kv_lens=torch.tensor([40, 40]), **factors)
    agree(out, reference.attention(*exact, kv_lens=torch.tensor([40, 40]))[0], float(exact[2].abs().max()))


def test_sizes_of_nothing() -> None:
    q, k = torch.zeros(1, 2, 0, 8).to(FP8), torch.zeros(1, 2, 0, 8).to(FP8)
    assert flex_attention(q, k, k).dtype == torch.bfloat16
    some = torch.ones(1, 2, 3, 8).to(FP8)
    assert torch.equal(flex_attention(some, k, k), torch.zeros(1, 2, 3, 8, dtype=torch.bfloat16))
    assert quantize_fp8(torch.zeros(1, 2, 0, 8))[1].shape == (1, 2)


def test_how_far_8_bits_are_from_16() -> None:
    """The whole error, of rounding queries, keys and values, on random normal inputs: 4 to 5 % of the result.

    A number that is rounded to 3 bits of mantissa is off by ``r`` = 2⁻⁴/√3 · √0.541 = 0.0265 of itself (root of the
    mean square; 0.541 is the mean of 1/m² over mantissas m). A score of E products is then off by √2 r √E · scale =
    √2 r, its weight by that share; a result is off by r from its values and √2 r from its weights, together
    √3 r = 0.046.
    """
    whole = [drawn(1, 4, 512, 64, seed=n) for n in range(3)]
    (q, of_q), (k, of_k), (v, of_v) = (quantize_fp8(t) for t in whole)
    out = flex_attention(q, k, v, q_descale=of_q, k_descale=of_k, v_descale=of_v).double()
    exact = reference.attention(*whole)[0]
    error = float((out - exact).square().mean().sqrt() / exact.square().mean().sqrt())
    assert 0.041 < error < 0.051


def test_quantizing_uses_the_whole_range() -> None:
    x = drawn(2, 3, 40, 8, spread=100.0)
    x[1, 2] = 0
    stored, of = quantize_fp8(x)
    assert stored.dtype == FP8
    assert torch.equal(of[1, 2], torch.tensor(1.0))
    assert torch.equal(stored.float().abs().amax((2, 3))[0], torch.full((3,), 448.0))
    normal = x.abs() / of[..., None, None] >= 2.0**-6
    back = stored.float() * of[..., None, None]
    assert float(((back - x).abs() / x.abs())[normal].max()) <= 2.0**-4 * (1 + 1e-6)


def test_quantizing_with_fixed_factors_cuts_off_and_keeps_what_is_no_number() -> None:
    x = torch.tensor([1.0, -1e6, float("inf"), float("nan")]).view(1, 1, 1, 4)
    stored, of = quantize_fp8(x, torch.tensor([2.0]))
    assert of.tolist() == [2.0]
    torch.testing.assert_close(
        stored.float().flatten(), torch.tensor([0.5, -448.0, float("nan"), float("nan")]), equal_nan=True
    )


def test_an_infinity_does_not_spoil_the_factor_of_its_head() -> None:
    x = drawn(1, 1, 4, 8)
    x[0, 0, 0, 0] = float("inf")
    assert float(quantize_fp8(x)[1]) == pytest.approx(float(x[x.isfinite()].abs().max()) / 448)


def test_gradients_are_refused_at_once() -> None:
    (q, k, v), factors, _ = eight_bits()
    with pytest.raises(UnsupportedError, match=r"no gradient.*float8_e4m3fn"):
        flex_attention(q.requires_grad_(), k, v, enable_gqa=True, **factors)
    q = q.detach()
    bias = torch.zeros(4, requires_grad=True)
    for backend in ("auto", "reference"):
        with pytest.raises(UnsupportedError, match="no gradient"):
            flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[h], enable_gqa=True, backend=backend)
    with pytest.raises(UnsupportedError, match="no gradient"):
        flex_attention(q.float().requires_grad_(), k, v, enable_gqa=True)
    with pytest.raises(Exception, match="no gradient"):
        torch.compile(flex_attention, backend="aot_eager")(q.float().requires_grad_(), k, v, enable_gqa=True)
    with torch.no_grad():
        flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[h], enable_gqa=True)


def test_autocast_leaves_8_bits() -> None:
    inputs, factors, _ = eight_bits()
    right = flex_attention(*inputs, enable_gqa=True, **factors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(flex_attention(*inputs, enable_gqa=True, **factors), right)


def test_wrong_factors() -> None:
    (q, k, v), _, _ = eight_bits()
    for name, shape in (("q_descale", (3,)), ("k_descale", (2, 4)), ("v_descale", (3, 2)), ("k_descale", (1, 1, 2))):
        with pytest.raises(InputError, match=name):
            flex_attention(q, k, v, enable_gqa=True, **{name: torch.ones(shape)})
    with pytest.raises(KindError, match=r"v_descale.*float64"):
        flex_attention(q, k, v, enable_gqa=True, v_descale=torch.ones(2).double())
    with pytest.raises(InputError, match=r"q_descale.*float32"):
        flex_attention(q.float(), k, v, enable_gqa=True, q_descale=torch.ones(4))
    with pytest.raises(KindError, match="one dtype"):
        flex_attention(q, k.float(), v.float(), enable_gqa=True)


def test_under_a_compiler_and_exported() -> None:
    inputs, factors, _ = eight_bits((1, 2, 2, 20, 20, 16, 16))
    mask = masks.causal()

    class Attend(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, of: Tensor) -> Tensor:
            return flex_attention(q, k, v, block_mask=mask, q_descale=of, v_descale=of)

    of = factors["k_descale"]
    right = Attend()(*inputs, of)
    compiled = torch.compile(Attend(), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*inputs, of), right)
    exported = torch.export.export(Attend(), (*inputs, of)).module()
    assert torch.equal(exported(*inputs, of), right)


def test_an_exported_call_has_no_gradient_either() -> None:
    """The operator itself refuses: nothing checks the arguments of a graph."""
    _, k, v = eight_bits((1, 2, 2, 20, 20, 16, 16))[0]
    q = drawn(1, 2, 20, 16)

    class Attend(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return flex_attention(q, k, v)

    exported = torch.export.export(Attend(), (q, k, v)).module()
    with pytest.raises(UnsupportedError, match="no gradient"):
        exported(q.requires_grad_(), k, v)


def test_a_block_mask_that_is_given() -> None:
    inputs, factors, exact = eight_bits()
    blocks = create_block_mask(masks.causal(), None, None, 37, 50, BLOCK_SIZE=16)
    out = flex_attention(*inputs, block_mask=blocks, enable_gqa=True, **factors)
    agree(out, reference.attention(*exact, mask_mod=masks.causal())[0], float(exact[2].abs().max()))
