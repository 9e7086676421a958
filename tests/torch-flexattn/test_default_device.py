"""PyTorch's default device is where new tensors go, and none of those that a call is given are there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch_flexattn import PagedKVCache, flex_attention, flex_attention_varlen, masks, scores

DEFAULTS = ["meta", pytest.param("cuda", marks=pytest.mark.gpu)]


def inputs(device: str = "cpu") -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = (2, 4, 20, 8), (2, 4, 20, 8), (2, 4, 20, 8), (4, 20)
    return [torch.randn(s, generator=draw, device="cpu").to(device).requires_grad_() for s in shapes]


def everything(q, k, v, table, mask, alibi) -> list[torch.Tensor]:
    lens, bounds = (torch.tensor(n, device=q.device) for n in ([3, 20], [0, 5, 20]))
    out, lse = flex_attention(q, k, v, lambda s, b, h, i, j: s + 2 * table[h, j], mask, return_lse=True)
    found = [out, lse, flex_attention(q, k, v, alibi, masks.causal(), kv_lens=lens, q_offset=lens)]
    found += [flex_attention(q, k, v, mask_mod=mask), flex_attention(q, k, v, dropout_p=0.5, seed=3)]
    packed = [t[0].transpose(0, 1) for t in (q, k, v)]
    found.append(flex_attention_varlen(*packed, bounds, bounds, mask_mod=masks.causal(), batch_invariant=True))
    found += torch.autograd.grad(sum(t.square().sum() for t in found), [q, k, v, table])
    flex_attention(q, k, v, dropout_p=0.5)
    parents = torch.tensor([-1, *range(19)], device=q.device)
    biased = scores.t5_bias(table[:, :16].t(), bidirectional=False)
    found.append(flex_attention(q, k, v, biased, masks.natten2d((4, 5), 3) | masks.tree(parents, 0)))
    cache = PagedKVCache(4, 16, 4, 8, max_seqs=2, device=q.device)
    with torch.no_grad():
        seqs = [cache.allocate(), cache.allocate()]
        cache.append(seqs, k, v)
        found.append(cache.attend(q[:, :, -3:], seqs, mask_mod=masks.causal()))
    return found


@pytest.fixture
def default(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    torch.set_default_device(None)


@pytest.mark.parametrize("default", DEFAULTS, indirect=True)
def test_tensors_on_a_cpu_stay_there(default: str) -> None:
    given = *inputs(), masks.document([0, 5, 20]), scores.alibi(4)
    expected = everything(*given)
    torch.set_default_device(default)
    for a, b in zip(everything(*given), expected, strict=True):
        assert a.device.type == "cpu"
        assert torch.equal(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("default", ["cpu", "cuda"], indirect=True)
def test_tensors_on_a_gpu_stay_there(default: str) -> None:
    given = (
        *inputs("cuda"),
        masks.document(torch.tensor([0, 5, 20], device="cuda"), total=20),
        scores.alibi(4).to("cuda"),
    )
    expected = everything(*given)
    torch.set_default_device(default)
    for a, b in zip(everything(*given), expected, strict=True):
        assert a.is_cuda
        torch.testing.assert_close(a, b)
