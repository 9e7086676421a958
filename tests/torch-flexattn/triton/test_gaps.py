"""Tensors with gaps in memory, or one number that stands for all: kernels read them as the call means them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_flexattn import flex_attention, masks, score_mod
from torch_flexattn.kernels import gpu
from torch_flexattn.kernels.configured import Configured
from torch_flexattn.kernels.launch.again import Again
from torch_flexattn.kernels.triton import decode
from torch_flexattn.ops.paged import PagedCall, paged_attention
from torch_flexattn.options import KernelOptions

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTHS = [17, 1]  # the kernel of rows of blocks, and that of few queries


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def features(rows: int) -> list[Tensor]:
    shapes = (2, 2, rows, 16), (2, 1, 24, 16), (2, 1, 24, 16)
    return [drawn(*shape, seed=n).requires_grad_() for n, shape in enumerate(shapes)]


def with_gaps(values: list[int], dtype: torch.dtype) -> Tensor:
    return torch.tensor([[v, 77] for v in values], dtype=dtype, device=DEVICE)[:, 0]


def compared(rows: int, trained: tuple[Tensor, ...] = (), **options: Any) -> None:
    """Output and gradients, with those of the reference; few queries also by the kernels of decoding, forward."""
    inputs, found = features(rows), []
    weight = drawn(2, 2, rows, 16, seed=5)
    for backend in ("triton", "reference"):
        out = flex_attention(*inputs, enable_gqa=True, backend=backend, check=False, **options)
        found.append([out, *torch.autograd.grad(out, [*inputs, *trained], weight)])
    if rows == 1:
        with torch.no_grad():
            out = flex_attention(*inputs, enable_gqa=True, backend="decode", check=False, **options)
        found.insert(0, [out, *found[0][1:]])
    for other in found[:-1]:
        for got, right in zip(other, found[-1], strict=True):
            torch.testing.assert_close(got, right, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("rows", LENGTHS)
def test_sinks(rows: int) -> None:
    apart = drawn(4, seed=3).requires_grad_()
    compared(rows, (apart,), sinks=apart[::2])
    one = drawn(1, seed=4).requires_grad_()
    compared(rows, (one,), sinks=one.expand(2))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("rows", LENGTHS)
def test_lengths_and_offsets(rows: int, dtype: torch.dtype) -> None:
    compared(rows, kv_lens=with_gaps([24, 7], dtype))
    compared(rows, kv_lens=torch.tensor([9], dtype=dtype, device=DEVICE).expand(2))
    compared(rows, mask_mod=masks.causal(), q_offset=with_gaps([3, 6], dtype))


@pytest.mark.parametrize("rows", LENGTHS)
@pytest.mark.parametrize("how", ["one number", "turned"])
def test_gradients_of_lse(rows: int, how: str) -> None:
    inputs, sinks = features(rows), drawn(2, seed=3).requires_grad_()
    weight = drawn(1, seed=6).expand(2, 2, rows) if how == "one number" else drawn(rows, 2, 2, seed=6).permute(2, 1, 0)
    found = []
    for backend in ("triton", "reference"):
        _, lse = flex_attention(
            *inputs, enable_gqa=True, backend=backend, check=False, return_lse=True, sinks=sinks,
            score_mod=score_mod(lambda s, b, h, i, j: s * 0.5 + h),
        )  # fmt: skip
        found.append(torch.autograd.grad(lse, [*inputs, sinks], weight, materialize_grads=True))
    for got, right in zip(*found, strict=True):
        torch.testing.assert_close(got, right, rtol=2e-5, atol=2e-5)


def test_pages() -> None:
    q, k, v = drawn(2, 4, 1, 16), drawn(6, 16, 2, 16, seed=1), drawn(6, 16, 2, 16, seed=2)
    table = torch.tensor([[1, 0, 4], [5, 3, 2]], dtype=torch.int32, device=DEVICE)
    lens, slots = torch.tensor([40, 20], dtype=torch.int32, device=DEVICE), torch.tensor([1, 0], device=DEVICE)
    sinks = drawn(4, seed=3)
    call = PagedCall(None, None, 0.25, 48, backend="triton")
    expected = paged_attention(q, k, v, table, lens, slots.int(), sinks, call)[0]
    lens, slots = with_gaps(lens.tolist(), torch.int32), with_gaps(slots.tolist(), torch.int32)
    sinks, table = sinks.repeat_interleave(2)[::2], table.T.contiguous().T
    assert decode.serves(q, None)
    torch.testing.assert_close(paged_attention(q, k, v, table, lens, slots, sinks, call)[0], expected)


def test_features_apart_leave_the_order_of_the_query() -> None:
    _, k, v = (t.detach() for t in features(17))
    wide = drawn(2, 17, 2, 32).transpose(1, 2)
    out = flex_attention(wide[..., ::2], k, v, enable_gqa=True, backend="triton", check=False)
    assert out.stride() == torch.empty(2, 17, 2, 16).transpose(1, 2).stride()


@pytest.mark.parametrize("rows", LENGTHS)
@pytest.mark.parametrize("apart", [None, "q", "k", "v", "sinks"])
@pytest.mark.parametrize("chosen", ["gpu", "triton"])
def test_a_call_with_copies_is_not_one_to_be_made_again(
    chosen: str, rows: int, apart: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = dict(zip("qkv", (t.detach() for t in features(rows)))) | {"sinks": drawn(2)}
    if apart is not None:
        tensors[apart] = tensors[apart].repeat_interleave(2, -1)[..., ::2]
    seen: list[Any] = []
    for module, name in ((gpu.portable, "forward"), (gpu.decode, "decode")):
        monkeypatch.setattr(module, name, lambda *given, again=None, **options: seen.append(again))
    sinks, again = tensors.pop("sinks"), Again()
    forward = gpu.forward if chosen == "gpu" else Configured("triton", KernelOptions()).forward
    forward(
        *tensors.values(), kv_lens=None, dropout_p=0.0, seed=0, check=False, again=again, sinks=sinks, mask=None,
        score=None, scale=1.0, q_offset=0, want_max=False,
    )  # fmt: skip
    assert seen == [again if apart is None else None]
