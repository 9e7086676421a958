"""The fixture `guarded`, on which the tests of memory beside results rely, finds a write there."""

from __future__ import annotations

import pytest
import torch
import torch_tcgnn as tcg


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
@pytest.mark.parametrize("place", [-1, 6])
@pytest.mark.parametrize("how", ["new_empty", "empty_like"])
def test_a_write_beside_a_result_is_found(guarded, how, place, dtype):
    like = torch.zeros(2, 3, dtype=dtype)
    out = like.new_empty(2, 3) if how == "new_empty" else torch.empty_like(like)
    out.zero_()
    guarded()
    out.as_strided((1,), (1,), out.storage_offset() + place).zero_()
    with pytest.raises(AssertionError):
        guarded()


def test_an_element_that_was_not_written_is_nan(guarded):
    assert torch.zeros(2).new_empty(3).isnan().all()


def test_kernels_of_the_cpu_write_inside_their_results(guarded):
    rng = torch.Generator().manual_seed(0)
    g = tcg.TCGraph.from_edge_index(torch.randint(0, 45, (2, 300), generator=rng), 45)
    x = torch.randn(45, 3, 5, generator=rng, requires_grad=True)
    logits = tcg.sddmm(g, x, x)
    out = tcg.spmm(g, x, tcg.edge_softmax(g, logits)) + tcg.spmm(g, x, reduce="max") + tcg.dot_attention(g, x, x, x)
    out = out + tcg.gat_attention(g, x, x.sum(-1), x.mean(-1)) + tcg.gatv2_attention(g, x, x, x[0])
    (grad,) = torch.autograd.grad(out.square().sum(), x)
    assert out.isfinite().all()
    assert grad.isfinite().all()
    guarded()
