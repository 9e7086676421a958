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
def quick_tanh(x: gl.tensor) -> Any:
    """Hyperbolic tangent by one instruction of the special unit; the error is up to 2⁻¹¹ of the result."""
    return gl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def tanh_of_pairs(x: gl.tensor) -> Any:
    """Hyperbolic tangent of ``x / (2 log2 e)`` for whole tiles of scores; the error is relative to 1.

    Neighbours share one reciprocal: ``1/a`` and ``1/b`` are ``b/ab`` and ``a/ab``. In a thread they are two keys of one
    row, so a NaN stays in its row; ``a`` and ``b`` are at most 2⁶⁰, where the result has long been 1.
    """
    return gl.inline_asm_elementwise(
        """
        {
        .reg .f32 a, b, r;
        ex2.approx.ftz.f32 a, $2;
        ex2.approx.ftz.f32 b, $3;
        add.f32 a, a, 0f3F800000;
        add.f32 b, b, 0f3F800000;
        min.NaN.f32 a, a, 0f5D800000;
        min.NaN.f32 b, b, 0f5D800000;
        mul.f32 r, a, b;
        rcp.approx.ftz.f32 r, r;
        mul.f32 r, r, 0fC0000000;
        fma.rn.f32 $0, r, b, 0f3F800000;
        fma.rn.f32 $1, r, a, 0f3F800000;
        }
        """,
        "=f,=f,f,f",
        [x],
        dtype=gl.float32,
        is_pure=True,
        pack=2,
    )
