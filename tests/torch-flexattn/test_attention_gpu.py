"""``flex_attention`` on a GPU: which kernels serve, and that they agree with the reference."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor
from torch_flexattn import (
    AuxRequest,
    InputError,
    create_block_mask,
    flex_attention,
    flex_attention_varlen,
    from_block_indices,
    masks,
    scores,
    stats,
)
from torch_flexattn.kernels.choose import kernels_for

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


def features(length: int, width: int = 64, dtype: torch.dtype = torch.bfloat16, batch: int = 2) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (batch, 4, length, width)
    return [torch.randn(shape, device="cuda", generator=generator).to(dtype).requires_grad_() for _ in range(3)]


def compared(tolerance: float, inputs: list[Tensor], **options: object) -> None:
    """Outputs, lse and gradients, with those of the reference; inputs behind the third get gradients alone."""
    results = []
    for backend in ("auto", "reference"):
        out, aux = flex_attention(*inputs[:3], backend=backend, return_aux=AuxRequest(lse=True), **options)
        assert aux.lse is not None
        loss = out.float().sin().sum() + aux.lse.clamp(min=-1e3).sum()
        results.append([out, aux.lse, *torch.autograd.grad(loss, inputs)])
    for found, right in zip(*results, strict=True):
        scale = max(float(right[right.isfinite()].abs().max()), 1e-3)
        torch.testing.assert_close(found.float(), right.float(), atol=tolerance * scale, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 7, 100, 700])
def test_agrees_with_the_reference(length: int, dtype: torch.dtype) -> None:
    tolerance = 2e-5 if dtype == torch.float32 else 0.02
    compared(tolerance, features(length, dtype=dtype), mask_mod=masks.causal() & masks.sliding_window(90))
    hopper = torch.cuda.get_device_capability()[0] == 9 and dtype != torch.float32
    assert stats().kernel == ("hopper" if hopper else "triton")  # of the backward pass


def test_strides_of_all_kinds() -> None:
    """Features apart, dimensions in another order, and a gradient that is one number everywhere."""
    whole = torch.randn(2, 300, 4, 64, 3, device="cuda").bfloat16().requires_grad_()
    q, k, v = (whole[..., n].transpose(1, 2) for n in range(3))
    results = []
    for backend in ("auto", "reference"):
        out = flex_attention(q, k, v, mask_mod=masks.causal(), backend=backend)
        results.append([out, *torch.autograd.grad(out.sum(), [whole])])
    for found, right in zip(*results, strict=True):
        torch.testing.assert_close(found.float(), right.float(), atol=0.02 * float(right.abs().max()), rtol=0)


@pytest.mark.parametrize("length", [1, 300])
def test_gaps_in_sinks_lengths_offsets_and_gradients_of_lse(length: int) -> None:
    inputs = features(length)
    apart = torch.randn(8, device="cuda").requires_grad_()
    compared(0.02, [*inputs, apart], sinks=apart[::2], mask_mod=masks.causal())
    of_two = torch.tensor([[length, 7], [1, 7]], device="cuda")[:, 0]
    compared(0.02, inputs, kv_lens=of_two)
    compared(0.02, inputs, q_offset=of_two.int(), mask_mod=masks.causal())
    found = []
    for backend in ("auto", "reference"):
        _, lse = flex_attention(*inputs, return_lse=True, backend=backend)
        found.append(torch.autograd.grad(lse.sum(), inputs[:2]))
    for got, right in zip(*found, strict=True):
        torch.testing.assert_close(got.float(), right.float(), atol=0.02 * float(right.abs().max()), rtol=0)


def test_options_take_the_portable_kernels() -> None:
    q, k, v = features(300)
    lens = torch.tensor([300, 123], device="cuda")
    compared(0.02, [q, k, v], kv_lens=lens, sinks=torch.randn(4, device="cuda"), score_mod=scores.softcap(10.0))
    compared(0.02, [q, k, v], dropout_p=0.3, seed=7)


def test_offsets_on_the_device() -> None:
    offset = torch.tensor([5, 90], device="cuda")
    q, k, v = features(200)
    compared(0.02, [q[:, :, :80].detach().requires_grad_(), k, v], mask_mod=masks.causal(), q_offset=offset)


def test_packed_sequences() -> None:
    starts = torch.tensor([0, 100, 101, 350], device="cuda")
    q, k, v = (torch.randn(350, 4, 64, device="cuda") for _ in range(3))
    found = flex_attention_varlen(q, k, v, starts, starts, mask_mod=masks.causal())
    right = flex_attention_varlen(q, k, v, starts, starts, mask_mod=masks.causal(), backend="reference")
    torch.testing.assert_close(found, right, atol=2e-5, rtol=0)


def test_float64_says_that_it_is_slow_once_and_is_exact() -> None:
    kernels_for.cache_clear()
    q, k, v = features(50, dtype=torch.float64)
    with pytest.warns(UserWarning, match="float64"):
        compared(1e-12, [q, k, v], mask_mod=masks.causal())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flex_attention(q, k, v)


def test_checked_reads_raise() -> None:
    q, k, v = features(40, dtype=torch.float32)
    table = torch.randn(40, device="cuda")
    with pytest.warns(UserWarning, match="check=True"), pytest.raises(IndexError, match="score_mod"):
        flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[i + j], check=True)
    assert flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[i + j]).isfinite().all()


@pytest.mark.parametrize("length", [128, 500])
def test_under_a_compiler(length: int) -> None:
    mask, score = masks.causal() & masks.sliding_window(60), scores.softcap(10.0)
    function = torch.compile(lambda q, k, v: flex_attention(q, k, v, score, mask), backend="aot_eager", fullgraph=True)
    q, k, v = features(length)
    found, right = function(q, k, v), flex_attention(q, k, v, score, mask)
    torch.testing.assert_close(found, right)
    grads = [torch.autograd.grad(out.sum(), [q, k, v]) for out in (found, right)]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=0.01, rtol=0.01)


def test_memory_stays_by_the_rows() -> None:
    """Beside outputs and gradients: sums of queries in float32, and a few numbers a row; never queries by keys."""
    q, k, v = features(4096, 64, batch=1)
    mask = masks.causal()

    def step() -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.autograd.grad(flex_attention(q, k, v, mask_mod=mask).sum(), [q, k, v])
        return torch.cuda.max_memory_allocated() - before

    step()
    kept = 5 * q.numel() * 2  # output, its gradient, and those of query, key, value
    assert step() - kept <= 8 * q.shape[1] * 4096 + 4 * q.numel() + 2**20


@pytest.mark.parametrize("length", [12, 300])
def test_tables_too_short_for_the_call_are_refused_without_a_check(length: int) -> None:
    q, k, v = (t.detach() for t in features(length))
    short = torch.zeros(5, dtype=torch.int32, device="cuda")
    with pytest.raises(InputError, match=r"mask_mod reads a captured tensor of shape \(5,\)"):
        flex_attention(q, k, v, mask_mod=lambda b, h, i, j: short[j] > 0)
    with pytest.raises(InputError, match=r"mask_mod reads a captured tensor of shape \(5,\)"):
        create_block_mask(lambda b, h, i, j: short[j] > 0, None, None, length, length, device="cuda")
    flex_attention(q, k, v, mask_mod=lambda b, h, i, j: (j < 5) & (short[j] == 0))
    slopes = torch.ones(2, device="cuda")
    with pytest.raises(InputError, match=r"score_mod reads .* at b=0, h=2"):
        flex_attention(q, k, v, score_mod=scores.alibi(slopes))


@pytest.mark.parametrize("length", [8, 300])
def test_block_masks_follow_the_offset_and_lists_stay(length: int) -> None:
    q, k, v = (t.detach() for t in features(300))
    q = q[:, :, :length]
    mask = create_block_mask(masks.causal(), None, None, length, 300, device="cuda")
    for offset in (90, torch.tensor([90, 17], device="cuda")):
        right = flex_attention(q, k, v, mask_mod=masks.causal(), q_offset=offset, backend="reference")
        found = flex_attention(q, k, v, block_mask=mask, q_offset=offset)
        torch.testing.assert_close(found.float(), right.float(), atol=0.02, rtol=0)
        lists = from_block_indices(
            torch.zeros(1, 1, -(-length // 128), 1, dtype=torch.int64, device="cuda"), q_len=length, kv_len=300
        )
        both = flex_attention(q, k, v, block_mask=lists, mask_mod=masks.causal(), q_offset=offset)
        first = masks.causal() & (lambda b, h, i, j: j < 128)
        right = flex_attention(q, k, v, mask_mod=first, q_offset=offset, backend="reference")
        torch.testing.assert_close(both.float(), right.float(), atol=0.02, rtol=0)
