"""Attention of 8-bit floats on a GPU: which kernels serve, and that they agree with the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_flexattn import AuxRequest, PagedKVCache, flex_attention, masks, quantize_fp8, scores, stats

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
FP8 = torch.float8_e4m3fn


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))


def eight_bits(length: int, width: int, heads: int = 4) -> tuple[list[Tensor], dict[str, Tensor]]:
    shapes = (2, 4, length, width), (2, heads, length, width), (2, heads, length, width)
    found = [quantize_fp8(drawn(*shape, seed=n)) for n, shape in enumerate(shapes)]
    return [t for t, _ in found], {f"{name}_descale": of for name, (_, of) in zip("qkv", found)}


@pytest.mark.parametrize("width", [32, 64, 80, 128, 256])
@pytest.mark.parametrize("length", [1, 7, 100, 700])
@pytest.mark.parametrize("heads", [4, 2])
def test_agrees_with_the_reference(length: int, width: int, heads: int) -> None:
    """Results are bfloat16: 2⁻⁸ of themselves, and what scores lose on Hopper, under 0.01."""
    inputs, factors = eight_bits(length, width, heads)
    results = []
    for backend in ("auto", "reference"):
        results.append(
            flex_attention(
                *inputs, **factors, enable_gqa=True, mask_mod=masks.causal(), score_mod=scores.softcap(20.0),
                backend=backend, return_aux=AuxRequest(lse=True, max_scores=True),
            )
        )  # fmt: skip
    assert stats().kernel in (("decode",) if length <= 16 else ("hopper", "triton"))
    (out, aux), (right, right_aux) = results
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), right.float(), rtol=2.0**-7, atol=0.03)
    torch.testing.assert_close(aux.lse, right_aux.lse, rtol=0, atol=0.02)
    torch.testing.assert_close(aux.max_scores, right_aux.max_scores, rtol=0, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("length", [1, 100, 700])
def test_keys_and_values_alone(length: int, dtype: torch.dtype) -> None:
    (_, k, v), factors = eight_bits(length, 64)
    del factors["q_descale"]
    q = drawn(2, 4, length, 64, seed=7).to(dtype)
    found, right = (
        flex_attention(q, k, v, **factors, mask_mod=masks.causal(), backend=backend)
        for backend in ("auto", "reference")
    )
    tolerance = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5}[dtype]
    torch.testing.assert_close(found.float(), right.float(), rtol=tolerance, atol=tolerance)


def test_options_take_the_portable_kernels() -> None:
    inputs, factors = eight_bits(700, 128)
    options: dict[str, Any] = {"kv_lens": torch.tensor([700, 123], device="cuda"), "sinks": drawn(4), **factors}
    found, right = (flex_attention(*inputs, **options, backend=backend) for backend in ("auto", "reference"))
    torch.testing.assert_close(found.float(), right.float(), rtol=2.0**-7, atol=0.03)


@pytest.mark.parametrize("length", [1, 100, 700])
def test_calls_that_are_made_again(length: int) -> None:
    """With other factors, and, without any, with other tensors."""
    inputs, factors = eight_bits(length, 64)
    right = flex_attention(*inputs, **factors)
    for times in (0.5, 2.0, 1.0):
        found = flex_attention(*inputs, **{**factors, "v_descale": factors["v_descale"] * times})
        torch.testing.assert_close(found.float(), right.float() * times, rtol=2.0**-7, atol=1e-6)
    for seed in range(3):
        others = [drawn(2, 4, length, 64, seed=10 * seed + n).to(FP8) for n in range(3)]
        found, right = flex_attention(*others), flex_attention(*others, backend="reference")
        torch.testing.assert_close(found.float(), right.float(), rtol=2.0**-7, atol=0.03)


def test_strides_of_a_projection() -> None:
    inputs, factors = eight_bits(700, 128)
    right = flex_attention(*inputs, **factors)
    turned = [t.view(torch.uint8).transpose(1, 2).contiguous().view(FP8).transpose(1, 2) for t in inputs]
    found = flex_attention(*turned, **factors)
    assert torch.equal(found, right)
    assert found.stride(1) < found.stride(2)


def test_the_blockwise_operations_take_them_too() -> None:
    inputs, factors = eight_bits(100, 64)
    found, right = (flex_attention(*inputs, **factors, backend=backend) for backend in ("cpu", "reference"))
    torch.testing.assert_close(found.float(), right.float(), rtol=2.0**-7, atol=1e-4)


@pytest.mark.parametrize("length", [100, 700])
def test_under_a_compiler(length: int) -> None:
    inputs, factors = eight_bits(length, 64)
    mask = masks.causal()
    function = torch.compile(
        lambda q, k, v, a, b, c: flex_attention(q, k, v, None, mask, q_descale=a, k_descale=b, v_descale=c),
        backend="aot_eager", fullgraph=True,
    )  # fmt: skip
    found, right = function(*inputs, *factors.values()), flex_attention(*inputs, None, mask, **factors)
    torch.testing.assert_close(found, right, rtol=2.0**-7, atol=0.01)


def caches(page_size: int = 16) -> tuple[PagedKVCache, PagedKVCache]:
    """The same cache on the GPU and on the CPU."""
    descales = {"k_descale": torch.tensor([0.02, 0.5]), "v_descale": 0.1}
    return tuple(  # type: ignore[return-value]
        PagedKVCache(64, page_size, 2, 64, max_seqs=4, dtype=FP8, device=device, **descales)
        for device in ("cuda", "cpu")
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("queries", [1, 4, 17, 200])
@pytest.mark.parametrize("page_size", [16, 64])
def test_pages(page_size: int, queries: int, dtype: torch.dtype) -> None:
    """What is stored is bit for bit what a CPU stores; results are of 16 bits."""
    on_gpu, on_cpu = caches(page_size)
    k, v = (drawn(1, 2, 300, 64, seed=n).to(dtype) for n in (1, 2))
    q = drawn(2, 8, queries, 64).to(dtype)
    results = []
    for cache in (on_gpu, on_cpu):
        first = cache.allocate()
        cache.append([first], k.to(cache.device), v.to(cache.device))
        second = cache.share_prefix(first, 250)
        cache.append([second], k[:, :, :7].to(cache.device), v[:, :, :7].to(cache.device))
        results.append(cache.attend(q.to(cache.device), [second, first], scores.softcap(5.0), masks.causal()))
    bits = [t.view(torch.uint8).cpu() for t in (on_gpu.k_pages, on_gpu.v_pages)]
    assert torch.equal(bits[0], on_cpu.k_pages.view(torch.uint8))
    assert torch.equal(bits[1], on_cpu.v_pages.view(torch.uint8))
    tolerance = 4e-3 if dtype == torch.float16 else 3e-2
    torch.testing.assert_close(results[0].cpu().float(), results[1].float(), rtol=tolerance, atol=tolerance)


def test_pages_in_a_cuda_graph() -> None:
    cache, _ = caches()
    seq = cache.allocate(80)
    k, v = (drawn(1, 2, 70, 64, seed=n).half() for n in (1, 2))
    cache.append([seq], k[:, :, :60], v[:, :, :60])
    new_k, new_v, q = (torch.empty(1, heads, 1, 64, device="cuda", dtype=torch.float16) for heads in (2, 2, 8))
    cache.advance([seq], 1)
    for target, source in ((new_k, k[:, :, 60:61]), (new_v, v[:, :, 60:61])):
        target.copy_(source)
    q.copy_(drawn(1, 8, 1, 64))
    cache.write([seq], new_k, new_v)
    cache.attend(q, [seq])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cache.write([seq], new_k, new_v)
        out = cache.attend(q, [seq])
    for n in range(61, 70):
        cache.advance([seq], 1)
        new_k.copy_(k[:, :, n : n + 1])
        new_v.copy_(v[:, :, n : n + 1])
        graph.replay()
    torch.testing.assert_close(out, cache.attend(q, [seq]), rtol=1e-3, atol=1e-3)
    plain = PagedKVCache(8, 16, 2, 64, max_seqs=1, dtype=torch.float16, device="cuda")
    other = plain.allocate()
    plain.append([other], k, v)
    error = (out - plain.attend(q, [other])).float()
    assert float(error.square().mean().sqrt()) < 0.1 * float(out.float().square().mean().sqrt())
