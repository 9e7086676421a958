"""All, or nothing."""

from __future__ import annotations

from ..mods import MaskMod, mask_mod


def always() -> MaskMod:
    """Every key is visible.

    Example:
        >>> import torch
        >>> zero = torch.tensor(0)
        >>> always()(zero, zero, zero, torch.arange(3))
        tensor([True, True, True])

    Reference:
        The neutral element of ``&``.
    """
    return mask_mod(lambda b, h, q_idx, kv_idx: True)


def never() -> MaskMod:
    """No key is visible.

    Example:
        >>> import torch
        >>> zero = torch.tensor(0)
        >>> never()(zero, zero, zero, torch.arange(3))
        tensor([False, False, False])

    Reference:
        The neutral element of ``|``.
    """
    return mask_mod(lambda b, h, q_idx, kv_idx: False)
