"""What Gluon has no word for, or different words from version to version."""

from __future__ import annotations

from typing import Any

from triton._C.libtriton import ir
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin

wait_for_group = getattr(gl, "thread_barrier", None) or gl.barrier
"""All warps of a group have come so far."""


@builtin
def add_shared_to_global(descriptor: Any, place: Any, tile: Any, _semantic: Any = None) -> None:
    """The copy engine adds ``tile``, in shared memory, to a tensor at ``place``; rows beyond its end are left out."""
    place = _semantic._convert_to_ir_values(place, require_i64=False)
    add = ir.DESCRIPTOR_REDUCE_KIND.ADD
    _semantic.builder.create_async_tma_reduce(add, descriptor.handle, place, tile.handle)
