"""Masks that depend on how many queries and keys there are, which is known only where attention is called."""

from __future__ import annotations

import dataclasses

from ..errors import InputError
from ..mods import MaskMod


class LengthGap:
    """Stands, among the numbers of a mask, for the number of keys minus that of queries."""

    def __index__(self) -> int:
        raise InputError(
            "the mask depends on the numbers of queries and keys: give them to its factory (q_len, kv_len), or call "
            "masks.with_lengths(mask, q_len, kv_len)"
        )

    def __repr__(self) -> str:
        return "kv_len - q_len"


LENGTH_GAP = LengthGap()


def with_lengths(mask: MaskMod, q_len: int, kv_len: int) -> MaskMod:
    """A mask in which numbers that depend on the lengths are filled in; itself if there are none.

    A mask of a grid is refused for more tokens than that has, unless something else is visible too (``|``).

    ``flex_attention`` and ``create_block_mask`` call this; it is of use where a mask is evaluated by hand.

    Args:
        mask: the mask.
        q_len: number of queries.
        kv_len: number of keys.

    Raises:
        InputError: a grid of fewer tokens.

    Example:
        >>> import torch
        >>> from torch_flexattn import masks
        >>> mask = masks.with_lengths(masks.causal("bottom_right"), 2, 3)
        >>> i, j, zero = torch.arange(2)[:, None], torch.arange(3), torch.tensor(0)
        >>> mask(zero, zero, i, j).int()
        tensor([[1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    if mask.tokens is not None and max(q_len, kv_len) > mask.tokens:
        raise InputError(
            f"mask_mod is that of a grid of {mask.tokens} tokens, got {q_len} queries and {kv_len} keys: for others "
            "beside the grid, say what they see by |"
        )
    if not any(isinstance(s, LengthGap) for s in mask.scalars):
        return mask
    scalars = tuple(kv_len - q_len if isinstance(s, LengthGap) else s for s in mask.scalars)
    return dataclasses.replace(mask, scalars=scalars)
