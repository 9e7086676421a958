"""Masks put together under PyTorch's names; ``&``, ``|`` and ``~`` of :class:`MaskMod` say the same."""

from __future__ import annotations

import functools
import operator

import torch

from .mods import MaskLike, MaskMod, mask_mod
from .open_mods import OpenMask, as_it_is
from .reindex import everything

noop_mask = everything()
NOTHING = ~noop_mask


@as_it_is
def and_masks(*mask_mods: MaskLike) -> MaskMod:
    """Visible where all of these masks say so; of none, everywhere.

    Args:
        mask_mods: masks, or functions ``(b, h, q_idx, kv_idx) -> bool``.

    Raises:
        KindError: something that is no mask.

    Example:
        >>> import torch
        >>> zero, i = torch.tensor(0), torch.arange(4)
        >>> near = lambda b, h, q_idx, kv_idx: q_idx - kv_idx < 2
        >>> and_masks(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, near)(zero, zero, torch.tensor(2), i)
        tensor([False,  True,  True, False])

    Reference:
        PyTorch, torch.nn.attention.flex_attention.
    """
    return functools.reduce(operator.and_, map(mask_mod, mask_mods)) if mask_mods else noop_mask


@as_it_is
def or_masks(*mask_mods: MaskLike) -> MaskMod:
    """Visible where one of these masks says so; of none, nowhere.

    Args:
        mask_mods: masks, or functions ``(b, h, q_idx, kv_idx) -> bool``.

    Raises:
        KindError: something that is no mask.

    Example:
        >>> import torch
        >>> zero, i = torch.tensor(0), torch.arange(4)
        >>> first = lambda b, h, q_idx, kv_idx: kv_idx < 1
        >>> or_masks(first, lambda b, h, q_idx, kv_idx: q_idx == kv_idx)(zero, zero, torch.tensor(2), i)
        tensor([ True, False,  True, False])

    Reference:
        PyTorch, torch.nn.attention.flex_attention.
    """
    return functools.reduce(operator.or_, map(mask_mod, mask_mods)) if mask_mods else NOTHING


@as_it_is
def not_mask(mask: MaskLike) -> MaskMod:
    """Visible where a mask says not.

    Args:
        mask: the mask, or a function ``(b, h, q_idx, kv_idx) -> bool``.

    Raises:
        KindError: no mask.

    Example:
        >>> import torch
        >>> zero, i = torch.tensor(0), torch.arange(4)
        >>> not_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)(zero, zero, torch.tensor(2), i)
        tensor([False, False, False,  True])
    """
    if torch.compiler.is_dynamo_compiling():
        return OpenMask(mask).inverted()  # type: ignore[return-value]
    return ~mask_mod(mask)
