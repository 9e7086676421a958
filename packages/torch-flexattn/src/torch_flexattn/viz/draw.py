"""What is drawn, from what a caller gives: a mask or a score modification."""

from __future__ import annotations

from ..block_mask import BlockMask
from ..errors import InputError
from ..mods import MaskLike, ScoreMod
from .cells import Cells
from .heatmap import score_cells
from .mask import Level, mask_cells

Drawable = BlockMask | MaskLike | ScoreMod


def draw(
    what: Drawable,
    q_len: int | None = None,
    kv_len: int | None = None,
    *,
    batch: int = 0,
    head: int = 0,
    block: int | tuple[int, int] = 128,
    level: Level = "auto",
    value: float = 0.0,
    mask: MaskLike | None = None,
    most: int = 32,
) -> Cells:
    """The cells of a mask or a score modification, at most ``most`` in each direction.

    Args, and errors: see :func:`torch_flexattn.viz.text`.

    Raises:
        InputError: ``most`` below 1, and what else does not fit.
    """
    if most < 1:
        raise InputError(f"the number of cells must be at least 1, got {most}")
    if isinstance(what, ScoreMod):
        return score_cells(what, q_len, kv_len, batch=batch, head=head, value=value, mask=mask, most=most)
    if mask is not None:
        raise InputError("mask goes with a score modification; masks are combined with &, | and ~")
    return mask_cells(what, q_len, kv_len, batch=batch, head=head, block=block, level=level, most=most)
