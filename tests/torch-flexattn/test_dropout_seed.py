"""Seeds of dropout: numbers and tensors, which kernels read where they lie."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_flexattn import InputError, KindError, flex_attention, flex_attention_varlen, masks


def inputs(device: str = "cpu", length: int = 24) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, length, 16, generator=draw).to(device).requires_grad_() for _ in range(3)]


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("seed", [0, 5 << 33 | 77])
def test_a_tensor_draws_what_its_number_draws(shape: tuple[int, ...], backend: str, seed: int) -> None:
    results = []
    for given in (seed, torch.full(shape, seed)):
        q, k, v = inputs()
        out = flex_attention(q, k, v, block_mask=masks.causal(), dropout_p=0.4, seed=given, backend=backend)
        results.append([out, *torch.autograd.grad(out.sin().sum(), [q, k, v])])
    for a, b in zip(*results):
        assert torch.equal(a, b)
    other = flex_attention(*inputs(), block_mask=masks.causal(), dropout_p=0.4, seed=torch.tensor(seed + 1))
    assert not torch.equal(results[0][0], other)


def test_any_64_bits_are_a_seed() -> None:
    q, k, v = inputs()
    outs = [flex_attention(q, k, v, dropout_p=0.4, seed=torch.tensor(s)) for s in (-1, 2**63 - 1, -(2**63))]
    assert not torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[1], outs[2])


def test_packed_sequences_take_one() -> None:
    q = torch.randn(9, 2, 8)
    starts = torch.tensor([0, 4, 9])
    a, b = (flex_attention_varlen(q, q, q, starts, starts, dropout_p=0.5, seed=s) for s in (3, torch.tensor(3)))
    assert torch.equal(a, b)


def test_the_operator_takes_one() -> None:
    from torch_flexattn.call import Call, pack

    q, k, v = inputs()
    seed = 5 << 60 | 3  # more than a float holds
    packed = pack(Call(None, None, 0.25, dropout_p=0.4, seed=torch.tensor(seed)))
    out, *_ = torch.ops.torch_flexattn.forward(q, k, v, None, *packed, False)
    assert torch.equal(out, flex_attention(q, k, v, dropout_p=0.4, seed=torch.tensor(seed)))
    torch.library.opcheck(torch.ops.torch_flexattn.forward.default, (q, k, v, None, *packed, False))


def test_a_seed_changed_before_the_backward_pass_is_noticed() -> None:
    q, k, v = inputs()
    seed = torch.tensor(3)
    out = flex_attention(q, k, v, dropout_p=0.4, seed=seed)
    seed += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_other_tensors_are_refused() -> None:
    q, k, v = inputs()
    with pytest.raises(KindError, match=r"seed .*torch.int32"):
        flex_attention(q, k, v, dropout_p=0.4, seed=torch.tensor(3, dtype=torch.int32))
    with pytest.raises(InputError, match=r"seed .*\(2,\)"):
        flex_attention(q, k, v, dropout_p=0.4, seed=torch.tensor([3, 4]))


def test_a_call_without_dropout_does_not_read_it() -> None:
    q, k, v = inputs()
    assert torch.equal(flex_attention(q, k, v, seed=torch.tensor(3)), flex_attention(q, k, v))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("at", ["cpu", "cuda"])
def test_a_gpu_draws_the_same(at: str) -> None:
    results = []
    for device, seed in (("cpu", 123456789012), ("cuda", torch.tensor([123456789012], device=at))):
        q, k, v = inputs(device, 200)
        out = flex_attention(q, k, v, block_mask=masks.causal(), dropout_p=0.4, seed=seed)
        results.append([t.cpu() for t in (out, *torch.autograd.grad(out.sin().sum(), [q, k, v]))])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_cuda_graph_draws_anew_when_its_seed_is_written() -> None:
    q, k, v = (t.detach() for t in inputs("cuda", 200))
    seed, mask = torch.tensor(1, device="cuda"), masks.causal()
    flex_attention(q, k, v, block_mask=mask, dropout_p=0.4, seed=seed)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flex_attention(q, k, v, block_mask=mask, dropout_p=0.4, seed=seed)
    for number in (1, 2, 9):
        seed.fill_(number)
        graph.replay()
        torch.testing.assert_close(out, flex_attention(q, k, v, block_mask=mask, dropout_p=0.4, seed=number))
