"""Ends of a softmax that kernels share."""

import triton
import triton.language as tl


@triton.jit
def with_sink(sink, total, lse):
    """The sum to divide by and the logarithm of the sum of exponentials, with one more score."""
    LOG2E: tl.constexpr = 1.4426950408889634
    share = tl.where(lse == float("-inf"), 1.0, 1.0 / (1.0 + tl.exp2((sink - lse) * LOG2E)))
    higher = tl.maximum(lse, sink)
    finite = tl.where(higher == float("-inf"), 0.0, higher)
    both = tl.exp2((lse - finite) * LOG2E) + tl.exp2((sink - finite) * LOG2E)
    return total / share, tl.where(higher == float("-inf"), higher, finite + tl.log2(both) / LOG2E)
