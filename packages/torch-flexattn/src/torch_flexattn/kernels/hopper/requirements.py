"""Why Hopper's kernels do not serve a call, in words; :func:`.attention.serves_forward` decides without them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ...block_mask import BlockMask
from ...fp8 import FP8
from ..triton.block_runs import BLOCK
from . import forward_source
from .attention import WIDENED_ROWS, WIDEST, backward_tiles, forward_tiles, is_widened_well
from .descriptors import describable


def why_not_forward(
    q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | None, kv_lens: Tensor | None, dropout_p: float
) -> str | None:
    """The first requirement of the forward kernel that a call does not meet, or ``None``."""
    program = forward_source.GROUPS * forward_source.ROWS
    least = program, forward_tiles(max(q.shape[3], v.shape[3])).keys
    if q.shape[2] <= forward_source.ROWS:
        return f"the forward kernel takes more than {forward_source.ROWS} queries, got {q.shape[2]}"
    return next(_unmet((q, k, v), kv_lens, dropout_p, (program, program) if mask is None else mask.block, least), None)


def why_not_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: BlockMask | None,
    kv_lens: Tensor | None,
    dropout_p: float,
    deterministic: bool = False,
) -> str | None:
    """Likewise of the backward kernels."""
    if deterministic:
        return "the backward kernels add in an order that varies, which a deterministic call cannot have"
    tiles = backward_tiles(max(q.shape[3], v.shape[3]))
    if q.shape[2] == 0:
        return "the backward kernels take at least one query, got 0"
    block = BLOCK if mask is None else mask.block
    return next(_unmet((q, k, v, grad_out), kv_lens, dropout_p, block, (tiles.rows, tiles.columns)), None)


def _unmet(
    tensors: tuple[Tensor, ...],
    kv_lens: Tensor | None,
    dropout_p: float,
    block: tuple[int, int],
    least: tuple[int, int],
) -> Iterator[str]:
    q, _, v = tensors[:3]
    widest, eight = max(q.shape[3], v.shape[3]), tensors[1].dtype == FP8
    if eight and not is_widened_well(q, tensors[1], v):
        yield (
            f"8 bits are copied to 16 for these kernels: from {WIDENED_ROWS} queries a key head on, of features in "
            f"multiples of 8, got {q.shape[2] * q.shape[1] // tensors[1].shape[1]} and {q.shape[3]}, {v.shape[3]}"
        )
    if not eight and q.element_size() != 2:
        yield f"the kernels multiply 16 bits, and the tensors are {q.dtype}"
    if widest > WIDEST:
        yield f"the kernels have room for {WIDEST} features, got {widest}"
    if kv_lens is not None:
        yield "the kernels take no kv_lens"
    if dropout_p:
        yield f"the kernels have no dropout, got dropout_p={dropout_p}"
    if block[0] % least[0] or block[1] % least[1]:
        yield f"blocks of the mask must be multiples of {least[0]} × {least[1]}, got {block[0]} × {block[1]}"
    if not eight and not describable(*tensors):
        yield (
            "the copy engine needs tensors that begin and step at multiples of 16 bytes, got strides "
            f"{', '.join(str(t.stride()) for t in tensors)}"
        )
