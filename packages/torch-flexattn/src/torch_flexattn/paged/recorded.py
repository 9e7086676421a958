"""Modifications of a call on pages, as programs."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..filled import Mod
from ..functional.arguments import check_captures
from ..masks import with_lengths
from ..mods import MaskLike, MaskMod, ScoreLike, ScoreMod, mask_mod, score_mod


def recorded(q: Tensor, score: ScoreLike | None, mask: MaskLike | None) -> tuple[ScoreMod | None, MaskMod | None]:
    """A score modification and a mask that does not wait for lengths.

    Args:
        q: the queries, with which captured tensors must lie.
        score: as the user gave it.
        mask: likewise.

    Raises:
        UnsupportedError: inside ``torch.compile``, one that was made there: the operator of pages takes programs.
        InputError: a captured tensor on another device.
    """
    if torch.compiler.is_dynamo_compiling():
        for name, mod in (("score_mod", score), ("mask_mod", mask)):
            if mod is not None and not isinstance(mod, Mod):
                raise UnsupportedError(
                    f"{name} of PagedKVCache.attend inside torch.compile must be made outside of the compiled "
                    "function, by mask_mod, score_mod, masks or scores"
                )
    of_scores = None if score is None else score_mod(score)
    visible = None if mask is None else with_lengths(mask_mod(mask), 0, 0)
    for name, mod in (("score_mod", of_scores), ("mask_mod", visible)):
        if mod is not None:
            check_captures(name, mod.captures, q)
    return of_scores, visible
