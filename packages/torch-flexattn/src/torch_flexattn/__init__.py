"""Attention variants written in a few lines of PyTorch, computed where they are visible: torch-flexattn."""

from . import data, masks, nn, parallel, scores, viz
from .block_lists import from_block_indices
from .block_mask import BlockMask
from .boolean import and_masks, noop_mask, not_mask, or_masks
from .build import create_block_mask, create_mask
from .caches import clear_caches
from .errors import (
    DataFormatError,
    DtypeError,
    FlexAttentionError,
    InputError,
    KindError,
    NoSuchSequence,
    OutOfPages,
    OutOfRangeError,
    OutOfSequences,
    UnsupportedError,
    UnsupportedModError,
)
from .examination import Finding, doctor
from .explanation import Explanation, explain
from .flops import attention_flops, register_flop_formulas
from .functional import (
    AuxOutput,
    AuxRequest,
    flex_attention,
    flex_attention_varlen,
    merge_attention,
    quantize_fp8,
    selected_attention,
)
from .masks_of_calls import forget_masks
from .mods import MaskMod, ScoreMod, compose_scores, mask_mod, score_mod
from .options import KernelOptions
from .paged import BatcherStats, BatchStep, CacheStats, Chunk, ContinuousBatcher, PagedKVCache, to_physical
from .stats import ObservedCall, Stats, listening, reset_stats, stats
from .warmup import CallSpec, Warmed, warmup

__version__ = "0.1.0"

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BatchStep",
    "BatcherStats",
    "BlockMask",
    "CacheStats",
    "CallSpec",
    "Chunk",
    "ContinuousBatcher",
    "DataFormatError",
    "DtypeError",
    "Explanation",
    "Finding",
    "FlexAttentionError",
    "InputError",
    "KernelOptions",
    "KindError",
    "MaskMod",
    "NoSuchSequence",
    "ObservedCall",
    "OutOfPages",
    "OutOfRangeError",
    "OutOfSequences",
    "PagedKVCache",
    "ScoreMod",
    "Stats",
    "UnsupportedError",
    "UnsupportedModError",
    "Warmed",
    "and_masks",
    "attention_flops",
    "clear_caches",
    "compose_scores",
    "create_block_mask",
    "create_mask",
    "data",
    "doctor",
    "explain",
    "flex_attention",
    "flex_attention_varlen",
    "forget_masks",
    "from_block_indices",
    "listening",
    "mask_mod",
    "masks",
    "merge_attention",
    "nn",
    "noop_mask",
    "not_mask",
    "or_masks",
    "parallel",
    "quantize_fp8",
    "register_flop_formulas",
    "reset_stats",
    "score_mod",
    "scores",
    "selected_attention",
    "stats",
    "to_physical",
    "viz",
    "warmup",
]
