"""Additions of float32 to sums in integers; see ``exact_sums``."""

import triton
import triton.language as tl


@triton.jit
def add_exactly(address, value, inside):
    """Add float32 numbers to the sums at ``address``."""
    bits = value.to(tl.float32).to(tl.int32, bitcast=True)
    exponent = (bits >> 23) & 255
    finite = exponent < 255
    fraction = (bits & 0x7FFFFF) | tl.where(exponent > 0, 0x800000, 0)
    place = tl.maximum(exponent, 1) - 1
    digit = place // 24
    whole = fraction.to(tl.int64) << (place % 24).to(tl.int64)
    low, high = whole & 0xFFFFFF, whole >> 24
    low = tl.where(bits < 0, -low, low)
    high = tl.where(bits < 0, -high, high)
    counts = inside & finite
    tl.atomic_add(address + digit, low, mask=counts & (low != 0), sem="relaxed")
    tl.atomic_add(address + digit + 1, high, mask=counts & (high != 0), sem="relaxed")
    bad = tl.where(finite, 0, 1).to(tl.int64)
    tl.atomic_add(address + 12, bad, mask=inside & (bad != 0), sem="relaxed")
