"""The TF32 switch of the benchmarks: on and off inside a block, as before after it."""

import pytest
import torch

from benchmarks.tf32 import tf32

MATMUL = torch.backends.cuda.matmul


@pytest.fixture(params=[True, False])
def before(request):
    """The state that the block is entered in."""
    outside = MATMUL.allow_tf32
    MATMUL.allow_tf32 = request.param
    yield request.param
    MATMUL.allow_tf32 = outside


def state():
    return MATMUL.allow_tf32, MATMUL.fp32_precision == "tf32"


@pytest.mark.parametrize("allowed", [True, False])
def test_both_switches_of_pytorch_change_inside_and_return_after(allowed, before):
    with tf32(allowed):
        assert state() == (allowed, allowed)
    assert state() == (before, before)


@pytest.mark.parametrize("allowed", [True, False])
def test_the_old_state_returns_after_an_error(allowed, before):
    with pytest.raises(ZeroDivisionError), tf32(allowed):
        _ = 1 / 0
    assert state() == (before, before)
