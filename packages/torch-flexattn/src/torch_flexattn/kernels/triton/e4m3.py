"""8-bit floats (e4m3) in kernels: widened as they are read, rounded as they are written."""

import triton
import triton.language as tl


@triton.jit
def widened(x, dtype: tl.constexpr):
    """8-bit floats in a wider type, exactly.

    Of bits, moved to where float16 has them: that is the number over 256, as exponents are biased by 7 and by 15.
    """
    if x.dtype == tl.uint8:
        bits = x.to(tl.uint16)
        half = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True) * 256.0
        return tl.where((bits & 0x7F) == 0x7F, float("nan"), half).to(dtype)
    else:
        return x.to(dtype)


@triton.jit
def rounded_bits(x, scale):
    """The bits of ``x / scale`` in e4m3, to the nearest, ties to even: as ``fp8.rounded_to_fp8``.

    From 1/64 on, the upper 3 bits of the mantissa stay and the exponent's bias changes by 120; below, numbers are
    multiples of 1/512, which are the last places of float32 at 16,384.
    """
    wide = x.to(tl.float32)
    scaled = tl.div_rn(wide, tl.zeros_like(wide) + scale)
    size = tl.minimum(tl.abs(scaled), 448.0)
    bits = size.to(tl.uint32, bitcast=True)
    large = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 120 * 8
    small = (size + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(size < 0.015625, small, large)
    code = tl.where(tl.abs(wide) < float("inf"), code, 0x7F)
    sign = (scaled.to(tl.uint32, bitcast=True) >> 24) & 0x80
    return (sign | code).to(tl.uint8)
