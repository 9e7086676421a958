"""Masks of attention-gym that torch-flexattn has, too: what each is there.

A formula gets what attention-gym's factory left in its function, by name, and gives ``None`` where torch-flexattn's is
another one for these numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attn_gym import masks as theirs
from torch import Tensor
from torch.nn.attention.flex_attention import noop_mask
from torch_flexattn import MaskMod, mask_mod
from torch_flexattn import masks as ours

from .made_by import code_in, code_of, parts_of, values_in

Values = dict[str, Any]
Formula = Callable[[Values], MaskMod | None]

CAUSAL = theirs.causal_mask.__code__
LAST = code_in(theirs.generate_sliding_window, "sliding_window")
NEIGHBOURS = code_in(theirs.generate_global_sliding_window, "sliding_window")
DILATED = code_in(theirs.generate_dilated_sliding_window, "dilated_sliding_window")
RELATIVE = {CAUSAL, LAST, NEIGHBOURS, DILATED, noop_mask.__code__}
"""Masks of the distance alone: counted from the start of a document they are what they are outside."""


def is_relative(mask: Callable[..., Any]) -> bool:
    """Whether a mask is known to look at nothing but ``q_idx - kv_idx``.

    Example:
        >>> is_relative(theirs.generate_sliding_window(3)), is_relative(theirs.generate_prefix_lm_mask(3))
        (True, False)
    """
    parts = parts_of(mask)
    return all(map(is_relative, parts)) if parts else code_of(mask) in RELATIVE


def dilated(values: Values) -> MaskMod:
    """Neighbours on both sides, of which every ``dilation``-th counts."""
    steps = values["window_size"] // values["dilation"]
    return ours.longformer(2 * steps, 0, dilation=values["dilation"])


def document(values: Values) -> MaskMod | None:
    """Documents, and in each a mask of the distance: any other would have to know where its document begins."""
    inner, total = values["mask_mod"], values["document_id"].shape[0]
    if not is_relative(inner):
        return None
    documents = ours.document(values["offsets"], causal=code_of(inner) is CAUSAL, total=total)
    return documents if code_of(inner) in (CAUSAL, noop_mask.__code__) else documents & inner


def causal_document(values: Values) -> MaskMod:
    """Documents that are causal inside."""
    return ours.document(values["offsets"], causal=True, total=values["document_id"].shape[0])


def natten(values: Values) -> MaskMod | None:
    """Neighbourhoods on a square, of kernels that have a middle.

    On other grids, attention-gym takes the width for the bounds of the axis that has the height.
    """
    size, kernel = values["canvas_w"], (values["kernel_w"], values["kernel_h"])
    if size != values["canvas_h"] or any(side % 2 == 0 for side in kernel):
        return None
    return ours.natten2d((size, size), kernel)


def sliding_tile(axes: str) -> Formula:
    """Neighbourhoods of tiles on a grid with no text behind it, whose axes attention-gym calls ``axes``."""

    def formula(values: Values) -> MaskMod | None:
        if values["text_seq_len"]:
            return None
        # The window is one of tiles, whatever the shape of a tile: as if each were a line along the last axis.
        line = values_in(values[f"get_{'_'.join(axes)}_idx_tiled"])["tile_numel"]
        tile = [1] * (len(axes) - 1) + [line]
        shape, kernel = (
            tuple(values[f"{whole}_tile_{axis}"] * side for axis, side in zip(axes, tile, strict=True))
            for whole in ("canvas", "kernel")
        )
        return ours.sliding_tile(shape, tuple(tile), kernel)

    return formula


def chunked(values: Values) -> MaskMod | None:
    """Groups that are causal inside."""
    return ours.chunked(values["batchify_size"]) if code_of(values["mask_mod"]) is CAUSAL else None


def video_sparse(values: Values) -> MaskMod:
    """The tiles that a tile of queries has chosen; of those at an edge, the tokens that are there."""
    tile: int = values["tile_numel"]
    sizes: Tensor | None = values["variable_block_sizes"]
    if sizes is None:
        return ours.topk_blocks(values["topk_indices"], tile)
    there = mask_mod(lambda b, h, q_idx, kv_idx: kv_idx % tile < sizes[kv_idx // tile])
    return ours.topk_blocks(values["topk_indices"], tile, columns=sizes.shape[0]) & there


FORMULAS: dict[Any, Formula] = {
    CAUSAL: lambda values: ours.causal(),
    LAST: lambda values: ours.sliding_window(left=values["window_size"]),
    NEIGHBOURS: lambda values: ours.sliding_window(left=values["window_size"], right=values["window_size"]),
    DILATED: dilated,
    code_in(theirs.batchify_mask_mod, "batched_mask_mod"): chunked,
    code_in(theirs.generate_block_diffusion_mask, "block_diffusion_mask"): lambda values: ours.block_diffusion(
        values["seq_len"], values["block_size"]
    ),
    code_in(theirs.generate_doc_mask_mod, "doc_mask_mod"): document,
    code_in(theirs.generate_packed_causal_doc_mask_mod, "doc_causal_mask_mod"): causal_document,
    code_in(theirs.generate_natten, "natten_mask_mod"): natten,
    code_in(theirs.generate_sta_mask_mod_2d, "sta_mask_mod_2d"): sliding_tile("hw"),
    code_in(theirs.generate_sta_mask_mod_3d, "sta_mask_mod_3d"): sliding_tile("thw"),
    code_in(theirs.generate_vsa_mask_mod, "vsa_mask_mod"): video_sparse,
}
"""By the code of the function."""
