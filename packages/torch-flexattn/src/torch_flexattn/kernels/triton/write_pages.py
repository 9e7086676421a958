"""Writes new keys and values to their pages: one launch, which finds the pages itself."""

from __future__ import annotations

from torch import Tensor

from ..launch.kernel import Kernel
from ..launch.launch import launch
from .chunks import next_power_of_2

KERNEL = Kernel("copy_tokens", module="torch_flexattn.kernels.triton.write_pages_kernel")


def write(
    k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, table: Tensor, lengths: Tensor, slots: Tensor
) -> None:
    """The last tokens of slots.

    Args:
        k: ``[n, H, L, E]``.
        v: ``[n, H, L, Ev]``.
        k_pages: ``[pages, page size, H, E]``, features side by side.
        v_pages: ``[pages, page size, H, Ev]``.
        table: int32 ``[slots, pages of a sequence]``.
        lengths: int32 ``[slots]``, the new tokens counted in.
        slots: int32 ``[n]``.
    """
    (n, heads, tokens, width), width_v = k.shape, v.shape[3]
    launch(
        KERNEL, (n * tokens, heads),
        [
            k, v, k_pages, v_pages, table, lengths, slots, *k.stride(), *v.stride(), *k_pages.stride()[:3],
            *v_pages.stride()[:3], table.stride(0), tokens,
        ],
        WIDTH=width, VALUE_WIDTH=width_v, PAGE=k_pages.shape[1], PADDED=next_power_of_2(max(width, width_v)), warps=1,
    )  # fmt: skip
