"""T5's bias as a module: dense and as a score modification, the same."""

from __future__ import annotations

import copy

import pytest
import torch
from torch_flexattn import flex_attention
from torch_flexattn.nn import T5RelativeBias


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("lengths", [(6, 6), (150, 9)])
def test_the_score_modification_adds_the_dense_bias(bidirectional, lengths):
    torch.manual_seed(0)
    module = T5RelativeBias(8, 2, bidirectional=bidirectional, max_distance=20)
    q, k = torch.randn(1, 2, lengths[0], 4), torch.randn(1, 2, lengths[1], 4)
    scores = q @ k.mT / 2 + module(*lengths)
    found = flex_attention(q, k, k, score_mod=module.score_mod())
    torch.testing.assert_close(found, scores.softmax(-1) @ k)
    grads = [torch.autograd.grad(out.square().sum(), module.weight) for out in (found, scores.softmax(-1) @ k)]
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-5)


def test_known_buckets():
    module = T5RelativeBias(32, 1)
    with torch.no_grad():
        module.weight.copy_(torch.arange(32.0).unsqueeze(1))
    dense = module(201, 401)[0, 0, 200]
    ahead = torch.tensor([-200, -128, -64, -16, -8, -7, -1, 0, 1, 7, 8, 16, 64, 128, 200])
    assert dense[200 + ahead].tolist() == [15, 15, 14, 10, 8, 7, 1, 0, 17, 23, 24, 26, 30, 31, 31]


def test_a_copy_has_a_weight_of_its_own():
    first = T5RelativeBias(8, 2)
    second = copy.deepcopy(first)
    first.score_mod()
    assert any(capture is second.weight for capture in second.score_mod().captures)
    assert list(first.state_dict()) == ["weight"]
