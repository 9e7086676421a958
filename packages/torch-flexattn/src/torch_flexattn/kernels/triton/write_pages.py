"""Writes new keys and values to their pages: one launch, which finds the pages itself."""

from __future__ import annotations

from torch import Tensor

from ...fp8 import as_bits
from ..launch.kernel import Kernel
from ..launch.launch import launch
from .chunks import next_power_of_2

KERNEL = Kernel("copy_tokens", module="torch_flexattn.kernels.triton.write_pages_kernel")


def write(
    k: Tensor,
    v: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    table: Tensor,
    lengths: Tensor,
    slots: Tensor,
    descales: Tensor | None = None,
) -> None:
    """The last tokens of slots; rounded, where pages are of 8 bits.

    Args:
        k: ``[n, H, L, E]``.
        v: ``[n, H, L, Ev]``.
        k_pages: ``[pages, page size, H, E]``, features side by side.
        v_pages: ``[pages, page size, H, Ev]``.
        table: int32 ``[slots, pages of a sequence]``.
        lengths: int32 ``[slots]``, the new tokens counted in.
        slots: int32 ``[n]``.
        descales: float32 ``[2, H]``, where pages are of 8 bits: what is stored is a number over that of its head.
    """
    (n, heads, tokens, width), width_v = k.shape, v.shape[3]
    k_pages, v_pages = as_bits(k_pages), as_bits(v_pages)
    launch(
        KERNEL, (n * tokens, heads),
        [
            k, v, k_pages, v_pages, table, lengths, slots, *k.stride(), *v.stride(), *k_pages.stride()[:3],
            *v_pages.stride()[:3], table.stride(0), descales, 0 if descales is None else descales.stride(0), tokens,
        ],
        WIDTH=width, VALUE_WIDTH=width_v, PAGE=k_pages.shape[1], PADDED=next_power_of_2(max(width, width_v)), warps=1,
    )  # fmt: skip
