"""Keys and values that lie in pages, put side by side."""

from __future__ import annotations

from torch import Tensor

from ..fp8 import as_bits


def side_by_side(pages: Tensor, table: Tensor) -> Tensor:
    """The pages of each sequence one after the other.

    Args:
        pages: ``[pages, page size, H, D]``.
        table: int ``[B, n]``; entries that are no page stand for any page.

    Returns:
        ``[B, H, n · page size, D]``.
    """
    (count, size, heads, width), (batch, each) = pages.shape, table.shape
    if not count or not table.numel():
        return pages.new_zeros(batch, heads, each * size, width)
    found = as_bits(pages).index_select(0, table.clamp(0, count - 1).flatten()).view(pages.dtype)
    return found.view(batch, each * size, heads, width).transpose(1, 2)
