"""Text with images, as tokens between the text or as keys of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError
from ..factory_arguments import IntTable, check_count, check_int_table, check_range, is_read
from ..mods import MaskMod, mask_mod
from ..tables import by_token, in_single_runs, run_bounds


def image_text(segments: IntTable) -> MaskMod:
    """Text is causal, an image sees all of itself: ``i ≥ j or (segment(i) = segment(j) and it is an image)``.

    An image that is not interrupted makes an interval a query, ``j < end(i)``.

    Args:
        segments: ``[S]`` or ``[B, S]``: the number of the image that a token belongs to; −1: text. Where the tensor
            lies on another device than the CPU, this call waits for it.

    Raises:
        InputError: a number below −1, a wrong shape.
        KindError: no integers.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(4), torch.tensor(0)
        >>> image_text([-1, 0, 0, -1])(zero, zero, i[:, None], i).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 1, 0],
                [1, 1, 1, 0],
                [1, 1, 1, 1]], dtype=torch.int32)

    Reference:
        Beyer et al. 2024 (PaliGemma), section 3; Gemma 3 (2025), section 2.
    """
    table = check_int_table("segments", segments, "[S] or [B, S]", [1, 2])
    check_range("segments", table, -1)
    token = torch.arange(table.shape[-1], dtype=torch.int32, device=table.device)
    if in_single_runs(torch.where(table < 0, -1 - token, table)):  # no two tokens of text are of one segment
        return _until(torch.where(table < 0, token + 1, run_bounds(table)[1]))
    segment = by_token(table)

    def mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        own = segment(b, q_idx)
        return (q_idx >= kv_idx) | ((own == segment(b, kv_idx)) & (own >= 0))

    return mask_mod(mask)


def transfusion(spans: IntTable, length: int) -> MaskMod:
    """Text is causal, an image sees all of itself; images are given by where they begin and end.

    Args:
        spans: ``[m, 2]`` or ``[B, m, 2]``: the first token of each image and the first after it; images do not overlap.
            An empty span is no image.
        length: number of tokens.

    Raises:
        InputError: spans outside of the tokens, that overlap or that end before they begin (checked on the CPU only), a
            wrong shape.
        KindError: no integers.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(4), torch.tensor(0)
        >>> transfusion(torch.tensor([[1, 3]]), 4)(zero, zero, i[:, None], i).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 1, 0],
                [1, 1, 1, 0],
                [1, 1, 1, 1]], dtype=torch.int32)

    Reference:
        Zhou et al. 2024 (Transfusion), section 3.2.
    """
    length = check_count("length", length)
    table = check_int_table("spans", spans, "[m, 2] or [B, m, 2]", [2, 3])
    if table.shape[-1] != 2:
        raise InputError(f"spans must have the shape [m, 2] or [B, m, 2], got {list(table.shape)}")
    check_range("spans", table, 0, length)
    start, end = table[..., :1].mT, table[..., 1:].mT  # [..., 1, m]
    if is_read(table) and bool((start > end).any()):
        raise InputError(
            f"spans must not end before they begin, got {table[table[..., 0] > table[..., 1]][0].tolist()}"
        )
    token = torch.arange(length, dtype=torch.int32, device=table.device)
    inside = (token.unsqueeze(-1) >= start) & (token.unsqueeze(-1) < end)  # [..., length, m]
    if is_read(table) and bool((inside.sum(-1) > 1).any()):
        raise InputError(f"spans must not overlap, got token {int((inside.sum(-1) > 1).nonzero()[0, -1])} in two")
    last = torch.where(inside, end, 0).sum(-1, dtype=torch.int32)
    return _until(torch.maximum(last, token + 1))


def _until(ends: Tensor) -> MaskMod:
    end = by_token(ends)
    return mask_mod(lambda b, h, q_idx, kv_idx: kv_idx < end(b, q_idx))


def flamingo(media_ids: IntTable, tokens_per_media: int | IntTable = 1) -> MaskMod:
    """Text sees the last image before it: queries are text, keys the tokens of the images, one after the other.

    Args:
        media_ids: ``[L]`` or ``[B, L]``: of each token of text, the number of the last image before it; −1: none, so it
            sees nothing.
        tokens_per_media: keys of an image, or ``[m]``, of each.

    Raises:
        InputError: a number below −1, of an image that is not there (checked on the CPU only), a wrong shape.
        KindError: no integers.

    Example:
        >>> import torch
        >>> i, j, zero = torch.arange(4)[:, None], torch.arange(4), torch.tensor(0)
        >>> flamingo([-1, 0, 0, 1], 2)(zero, zero, i, j).int()
        tensor([[0, 0, 0, 0],
                [1, 1, 0, 0],
                [1, 1, 0, 0],
                [0, 0, 1, 1]], dtype=torch.int32)

    Reference:
        Alayrac et al. 2022 (Flamingo), section 2.3.
    """
    media = check_int_table("media_ids", media_ids, "[L] or [B, L]", [1, 2])
    check_range("media_ids", media, -1)
    if isinstance(tokens_per_media, Tensor | list | tuple):
        sizes = check_int_table("tokens_per_media", tokens_per_media, "[m]", [1])
        check_range("tokens_per_media", sizes, 0)
        check_range("media_ids", media, -1, sizes.numel() - 1)
        bounds = torch.cat([sizes.new_zeros(1), sizes.cumsum(0).to(torch.int32), sizes.new_zeros(1)])
        starts, ends = bounds[:-1][media.long()], bounds[1:][media.long()]  # image −1 is the last: from m to 0, empty
    else:
        count = check_count("tokens_per_media", tokens_per_media)
        starts, ends = media * count, (media + 1) * count
    start, end = by_token(starts), by_token(ends)
    return mask_mod(lambda b, h, q_idx, kv_idx: (kv_idx >= start(b, q_idx)) & (kv_idx < end(b, q_idx)))
