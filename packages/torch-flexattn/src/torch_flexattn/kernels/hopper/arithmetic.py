"""Functions that Gluon's compiler lacks, or makes slow, in the words of the machine."""

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def tanh(x: gl.tensor) -> Any:
    """Hyperbolic tangent, by two instructions of the special unit; the error is relative to 1."""
    return gl.inline_asm_elementwise(
        """
        {
        .reg .f32 e;
        mul.f32 e, $1, 0f4038AA3B;
        ex2.approx.ftz.f32 e, e;
        add.f32 e, e, 0f3F800000;
        rcp.approx.ftz.f32 e, e;
        fma.rn.f32 $0, e, 0fC0000000, 0f3F800000;
        }
        """,
        "=f,f",
        [x],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def tanh_of_pairs(x: gl.tensor) -> Any:
    """Hyperbolic tangent of ``x / (2 log2 e)`` for whole tiles of scores; the error is relative to 1.

    The special unit is what such a tile waits for, so neighbours share one reciprocal (``1/a`` and ``1/b`` are ``b/ab``
    and ``a/ab``), and of their two exponentials one is a polynomial: ``2ˣ`` is ``2ʳ`` times that of what rounding to
    ``r`` leaves, of degree 5, to 1.6e-7. Neighbours in a thread are two keys of one row, so a NaN stays in its row;
    ``a`` and ``b`` are at most 2⁶⁰, where the result has long been 1.
    """
    return gl.inline_asm_elementwise(
        """
        {
        .reg .f32 a, b, f, p, r;
        .reg .b32 bits, power;
        ex2.approx.ftz.f32 a, $2;
        add.f32 a, a, 0f3F800000;
        min.NaN.f32 a, a, 0f5D800000;
        max.NaN.f32 b, $3, 0fC2FC0000;
        min.NaN.f32 b, b, 0f42700000;
        add.rn.f32 r, b, 0f4B400000;
        mov.b32 bits, r;
        add.rn.f32 r, r, 0fCB400000;
        sub.rn.f32 f, b, r;
        fma.rn.f32 p, f, 0f3AADDD0A, 0f3C1E7544;
        fma.rn.f32 p, p, f, 0f3D635BA9;
        fma.rn.f32 p, p, f, 0f3E75FCDE;
        fma.rn.f32 p, p, f, 0f3F317215;
        fma.rn.f32 p, p, f, 0f3F800000;
        mad.lo.s32 power, bits, 0x800000, 0x3F800000;
        mov.b32 b, power;
        fma.rn.f32 b, b, p, 0f3F800000;
        mul.f32 r, a, b;
        rcp.approx.ftz.f32 r, r;
        mul.f32 b, r, b;
        mul.f32 a, r, a;
        fma.rn.f32 $0, b, 0fC0000000, 0f3F800000;
        fma.rn.f32 $1, a, 0fC0000000, 0f3F800000;
        }
        """,
        "=f,=f,f,f",
        [x],
        dtype=gl.float32,
        is_pure=True,
        pack=2,
    )
