"""The masks that torchtitan gives to its layers, as those of torch-flexattn."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.attention import flex_attention as theirs
from torch.utils._python_dispatch import _disable_current_modes  # no public name; see converted
from torch_flexattn import BlockMask, KindError, UnsupportedError

_known: WeakKeyDictionary[theirs.BlockMask, BlockMask] = WeakKeyDictionary()


def seen(mask: Any) -> Any:
    """The mask of a call, as ``flex_attention`` takes it.

    Of PyTorch's block mask, the blocks and the function; under ``torch.compile`` the function alone, whose blocks are
    found when the graph runs, once for all layers.

    Args:
        mask: PyTorch's block mask, one of torch-flexattn, a ``MaskMod`` or a function of four indices.

    Raises:
        KindError: something else.
        UnsupportedError: under ``torch.compile``, a block mask without a function: its blocks are all it says.

    Example:
        >>> mask = theirs.create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu")
        >>> seen(mask)
        BlockMask(1×1×128×128, block=128×128, runs=1, device=cpu)
    """
    if isinstance(mask, theirs.BlockMask):
        if not torch.compiler.is_compiling():
            return converted(mask)
        if mask.mask_mod is theirs.noop_mask:
            raise UnsupportedError(
                "attention_masks lists blocks without a function, which a compiled graph cannot read: give "
                "converted(mask), made outside of it"
            )
        return mask.mask_mod
    if isinstance(mask, BlockMask) or callable(mask):
        return mask
    got = type(mask).__name__
    raise KindError(f"attention_masks must be the mask of one layer, a BlockMask, a MaskMod or a function, got {got}")


def converted(mask: theirs.BlockMask) -> BlockMask:
    """PyTorch's block mask as one of torch-flexattn: made once, for all layers, and kept as long as ``mask`` lives.

    Selective checkpointing keeps outputs of operators by their order. So it must not see a conversion, which the first
    layer makes and its recomputation does not: dispatch modes are off here.

    Args:
        mask: of torchtitan's ``create_attention_mask``, cut for a rank or not, or by hand.

    Returns:
        The same blocks, and in partial ones the same function, recorded.

    Raises:
        InputError: a sliced mask, which has lost its function, or blocks that are no multiples of 16.
        UnsupportedModError: a function that does what a kernel cannot, with its line.

    Example:
        >>> mask = theirs.create_block_mask(lambda b, h, i, j: i >= j, None, None, 256, 256, device="cpu")
        >>> converted(mask).nnz_blocks(), converted(mask) is converted(mask)
        ((2, 1), True)

    Reference:
        torchtitan, ``torchtitan.models.common.attention.create_attention_mask``.
    """
    found = _known.get(mask)
    if found is None:
        with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
            found = _known[mask] = BlockMask.from_torch(mask)
    return found
