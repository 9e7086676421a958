"""What is counted, and who hears of calls."""

from __future__ import annotations

import pytest
import torch
from torch_flexattn import flex_attention, forget_masks, listening, mask_mod, masks, reset_stats, stats


@pytest.fixture
def q():
    reset_stats()
    forget_masks()
    return torch.randn(2, 4, 20, 8, generator=torch.Generator().manual_seed(0))


def test_masks_are_counted_as_built_then_as_reused(q):
    causal = masks.causal()
    for _ in range(3):
        flex_attention(q, q, q, mask_mod=causal)
    assert (stats().masks_built, stats().masks_reused) == (1, 2)
    assert stats().mask_build_ms > 0
    assert stats().kernel == "cpu"
    reset_stats()
    assert stats().masks_built == 0
    assert stats().mask_build_ms == 0


def test_a_function_counts_once_and_another_one_again(q):
    for width in (3, 4, 5):
        mask_mod(lambda b, h, i, j: i - j < width + 0 * i)  # noqa: B023
    assert stats().programs == 1
    mask_mod(lambda b, h, i, j: i - j < 7 + 0 * j)
    assert stats().programs == 2
    assert stats().compiles == 2


def test_listeners_hear_of_both_passes_while_they_listen(q):
    calls, q = [], q.requires_grad_()
    with listening(calls.append):
        flex_attention(q, q[:, :2], q[:, :2, :, :3], mask_mod=masks.causal(), enable_gqa=True).sum().backward()
    flex_attention(q, q, q)
    assert [call.backward for call in calls] == [False, True]
    assert (calls[0].query, calls[0].key, calls[0].value_width) == ((2, 4, 20, 8), (2, 2, 20, 8), 3)
    assert calls[0].mask.visible_pairs() == 210
    assert calls[1].mask is calls[0].mask
    assert (calls[0].kernel, calls[0].dtype, calls[0].device.type) == ("cpu", torch.float32, "cpu")


def test_listeners_hear_of_compiled_calls(q):
    calls, causal = [], masks.causal()
    torch._dynamo.reset()
    fast = torch.compile(lambda q: flex_attention(q, q, q, mask_mod=causal), fullgraph=True, backend="aot_eager")
    fast(q)
    with listening(calls.append):
        fast(q)
    assert [call.mask.visible_pairs() for call in calls] == [210]


def test_a_listener_is_gone_after_an_exception(q):
    calls = []
    with pytest.raises(ArithmeticError), listening(calls.append):
        raise ArithmeticError
    flex_attention(q, q, q)
    assert calls == []
    with pytest.raises(TypeError, match="listener must be a function of an ObservedCall, got int"), listening(3):
        pass
