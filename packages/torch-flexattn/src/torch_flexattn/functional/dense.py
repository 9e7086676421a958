"""``backend="reference"``: calls by the reference, which is dense, in float64, and has every derivative."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as theirs

from .. import reference
from ..block_mask import BlockMask
from ..errors import UnsupportedError
from ..fp8 import result_dtype
from ..masks import with_lengths
from ..mods import MaskLike, MaskMod, ScoreMod
from ..mods import mask_mod as as_mask
from .arguments import check_block_mask


def whole_mask(block_mask: Any, mask: MaskLike | None, q: Tensor, k: Tensor) -> MaskMod | None:
    """The mask of the call as a function of single positions.

    Args:
        block_mask: of the call.
        mask: of the call; both apply.
        q: the queries.
        k: the keys.

    Raises:
        UnsupportedError: blocks from a list, of which no function knows.
    """
    if isinstance(block_mask, theirs.BlockMask):
        block_mask = BlockMask.from_torch(block_mask)
    if isinstance(block_mask, BlockMask):
        check_block_mask(block_mask, q, k)
        if block_mask.listed:
            raise UnsupportedError("backend='reference' takes no block mask made from a list of blocks")
        block_mask = block_mask.mod
    given = [as_mask(m) for m in (block_mask, mask) if m is not None]
    if not given:
        return None
    return with_lengths(given[0] if len(given) == 1 else given[0] & given[1], q.shape[2], k.shape[2])


def by_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score: ScoreMod | None,
    mask: MaskMod | None,
    scale: float,
    sinks: Tensor | None,
    dropout_p: float,
    seed: int | Tensor,
    q_offset: Tensor | int,
    kv_lens: Tensor | None,
    descales: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``out``, ``lse`` and the largest scores of a call whose arguments were looked at; see ``flex_attention``."""
    dtype, dropout = q.dtype, None
    if descales is not None:
        q = (q if dtype == torch.float64 else q.float()) * descales[0][..., None, None]
    if dropout_p:
        from ..kernels.dropout import keep

        b, h, i = (
            torch.arange(n, device=q.device).view([-1 if d == own else 1 for d in range(4)])
            for own, n in enumerate(q.shape[:3])
        )
        i = i + torch.as_tensor(q_offset, device=q.device).view(-1, 1, 1, 1)
        dropout = keep(seed, b, h, i, 0, k.shape[2], dropout_p) / (1 - dropout_p)
    out, lse, largest = reference.attention(
        q, k, v, score_mod=score, mask_mod=mask, scale=scale, sinks=sinks, dropout_mask=dropout, q_offset=q_offset,
        kv_lens=kv_lens,
    )  # fmt: skip
    if descales is not None:
        out = out * descales[1][..., None, None]
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    return out.to(result_dtype(dtype)), lse.to(exact), largest.to(exact)
