"""Attention variants written in a few lines of PyTorch, computed where they are visible: torch-flexattn."""

from . import masks, scores
from .block_lists import from_block_indices
from .block_mask import BlockMask
from .build import create_block_mask, create_mask
from .errors import FlexAttentionError, InputError, KindError, UnsupportedError, UnsupportedModError
from .functional import AuxOutput, AuxRequest, flex_attention, flex_attention_varlen, merge_attention
from .masks_of_calls import forget_masks
from .mods import MaskMod, ScoreMod, compose_scores, mask_mod, score_mod

__version__ = "0.1.0"

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "FlexAttentionError",
    "InputError",
    "KindError",
    "MaskMod",
    "ScoreMod",
    "UnsupportedError",
    "UnsupportedModError",
    "compose_scores",
    "create_block_mask",
    "create_mask",
    "flex_attention",
    "flex_attention_varlen",
    "forget_masks",
    "from_block_indices",
    "mask_mod",
    "masks",
    "merge_attention",
    "score_mod",
    "scores",
]
