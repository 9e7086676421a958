"""Under ``torch.compile``: functions that are not modifications yet, apart from what else a call was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as theirs

from ..block_mask import BlockMask
from ..call import Call
from ..errors import UnsupportedError
from ..filled import Mod
from ..mods import MaskMod


class Functions:
    """What Dynamo has to read.

    Attributes:
        others: score modification, block mask and mask of the call without the functions.
    """

    def __init__(self, masks: tuple[Any, Any], score: Any) -> None:
        self._score = score if is_function(score) else None
        both = all(isinstance(mask, MaskMod) for mask in masks)
        self._masks = [mask for mask in masks if both or is_function(mask)]
        block_mask, mask = (None if both or is_function(mask) else mask for mask in masks)
        self.others = None if self._score is not None else score, block_mask, mask

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, call: Call
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``ops.attention`` with the functions."""
        from ..ops.functions import attention_with_functions

        mask: Callable[..., Any] | None = None
        if len(self._masks) == 1:
            mask = self._masks[0]
        elif self._masks:
            one, other = self._masks
            mask = lambda b, h, i, j: one(b, h, i, j) & other(b, h, i, j)  # noqa: E731
        return attention_with_functions(q, k, v, sinks, call, self._score, mask)


def functions_left(masks: tuple[Any, Any], score: Any, backend: str) -> Functions | None:
    """The functions of a call, or its two masks; ``None`` where there are none, or they can be recorded at once.

    Args:
        masks: the block mask and the mask of the call.
        score: its score modification.
        backend: of the call.

    Raises:
        UnsupportedError: the dense backend, which evaluates programs; a block mask, whose blocks are found already,
            beside another mask.
    """
    if not torch.compiler.is_dynamo_compiling():
        return None
    if any(is_function(mod) for mod in (*masks, score)) or all(isinstance(mask, MaskMod) for mask in masks):
        if backend == "reference":
            raise UnsupportedError("backend='reference' takes no functions under torch.compile: leave backend out")
        if None not in masks and any(isinstance(mask, BlockMask | theirs.BlockMask) for mask in masks):
            raise UnsupportedError("mask_mod beside a BlockMask under torch.compile: combine the masks with & instead")
        return Functions(masks, score)
    return None


def is_function(mod: Any) -> bool:
    """Whether ``mod`` is a function of the user's."""
    return mod is not None and callable(mod) and not isinstance(mod, Mod | BlockMask | theirs.BlockMask)
