"""What Triton lacks: Python's arithmetic, and the dropout that every device draws alike."""

import triton
import triton.language as tl


@triton.jit
def floor_div(a, b):
    """Integer quotient rounded towards minus infinity."""
    quotient = a // b
    return quotient - tl.where((quotient * b != a) & ((a < 0) != (b < 0)), 1, 0)


@triton.jit
def floor_mod(a, b):
    """Integer remainder with the sign of the divisor."""
    return a - floor_div(a, b) * b


@triton.jit
def round_half_even(x):
    """Nearest integer, ties to the even one."""
    nearest = tl.floor(x + 0.5)
    odd = nearest - 2.0 * tl.floor(nearest * 0.5)
    return tl.where((x + 0.5 == nearest) & (odd == 1.0), nearest - 1.0, nearest)


@triton.jit
def power(base, exponent):
    """``base ** exponent`` of floats."""
    size = tl.exp2(exponent * tl.log2(tl.abs(base)))
    whole = tl.floor(exponent) == exponent
    odd = exponent - 2.0 * tl.floor(exponent * 0.5) == 1.0
    signed = tl.where(base < 0, tl.where(whole, tl.where(odd, -size, size), float("nan")), size)
    return tl.where(exponent == 0, 1.0, signed)


@triton.jit
def tanh(x):
    """Hyperbolic tangent; the error is relative to 1."""
    return 1.0 - 2.0 / (tl.exp2(x * 2.8853900817779268) + 1.0)


@triton.jit
def keep(seed, b, h, q_idx, start, limit, WIDTH: tl.constexpr):
    """Which weights of keys from ``start`` on (a multiple of 4) dropout keeps, ``[rows, WIDTH]``; see ``dropout``."""
    quads = (start // 4 + tl.arange(0, WIDTH // 4))[None, :]
    zero = tl.zeros_like(quads + q_idx)
    w0, w1, w2, w3 = tl.philox(seed, quads + zero, q_idx + zero, h + zero, b + zero)
    even = tl.join(w0 >= limit, w2 >= limit)
    odd = tl.join(w1 >= limit, w3 >= limit)
    return tl.reshape(tl.join(even, odd), (q_idx.shape[0], WIDTH))


@triton.jit
def keep_transposed(seed, b, h, q_idx, kv_idx, limit):
    """The same for ``q_idx`` ``[1, rows]`` and ``kv_idx`` ``[keys, 1]``: ``[keys, rows]``."""
    zero = tl.zeros_like(q_idx + kv_idx)
    w0, w1, w2, w3 = tl.philox(seed, kv_idx // 4 + zero, q_idx + zero, h + zero, b + zero)
    place = kv_idx % 4 + zero
    word = tl.where(place == 0, w0, tl.where(place == 1, w1, tl.where(place == 2, w2, w3)))
    return word >= limit
