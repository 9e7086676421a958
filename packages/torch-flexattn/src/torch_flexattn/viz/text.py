"""A mask or a score modification as text: a grid of characters with positions at its sides, a legend and statistics."""

from __future__ import annotations

from ..mods import MaskLike
from ..shown import shows
from .cells import Cells
from .draw import Drawable, draw
from .mask import Level

WIDE = 2
"""Characters of a cell: two are about as wide as a line is high."""


@shows("picture")
def text(
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
    cells: int = 32,
) -> str:
    """A mask or a score modification as a picture of characters.

    Args:
        what: a :class:`~torch_flexattn.BlockMask`, a mask, a function ``(b, h, q_idx, kv_idx) -> bool``, or a
            :class:`~torch_flexattn.ScoreMod`.
        q_len: queries; a block mask has its own.
        kv_len: keys; default: ``q_len``.
        batch: which batch entry is shown.
        head: which head.
        block: of a mask, queries and keys of a block, multiples of 16.
        level: of a mask: ``"position"`` (a cell a position), ``"block"`` (a cell one block or several), or ``"auto"``:
            positions where they are few enough.
        value: of a score modification, the score that is modified, the same at every position.
        mask: of a score modification, what is hidden.
        cells: in each direction, at most.

    Raises:
        InputError: lengths that are missing or do not fit, no such batch or head, too many positions.
        KindError: neither a mask nor a score modification.

    Example:
        >>> from torch_flexattn import masks
        >>> print(text(masks.causal() & masks.sliding_window(2), 4))
        mask of 4 queries × 4 keys
           0 1 2 3
          ┌────────┐
        0 │██······│
        1 │████····│
        2 │··████··│
        3 │····████│
          └────────┘
        █ visible  · hidden
        a cell is a position
        1 partial, 0 full, 0 hidden of 1 blocks, sparsity 0.00 %
        7 of 16 pairs visible (43.8 %)

    Reference:
        Block masks: FlexAttention (MLSys 2025), section 3.2.
    """
    drawn = draw(
        what, q_len, kv_len, batch=batch, head=head, block=block, level=level, value=value, mask=mask, most=cells
    )
    return written(drawn)


def written(cells: Cells) -> str:
    """The picture of some cells, as text."""
    labels = [f"{row * cells.cell[0]:,}" for row in range(cells.rows)]
    margin = max((len(label) for label in labels), default=0)
    lines = [cells.title]
    if cells.rows and cells.columns:
        lines += [" " * (margin + 2) + _ruler(cells), " " * (margin + 1) + "┌" + "─" * (WIDE * cells.columns) + "┐"]
        for label, characters in zip(labels, cells.characters):
            lines.append(f"{label:>{margin}} │{''.join(c * WIDE for c in characters)}│")
        lines.append(" " * (margin + 1) + "└" + "─" * (WIDE * cells.columns) + "┘")
        lines.append(cells.legend)
    return "\n".join([*lines, *cells.notes])


def _ruler(cells: Cells) -> str:
    """The first key of some columns, at even distances, above them."""
    labels = [f"{column * cells.cell[1]:,}" for column in range(cells.columns)]
    step = 1
    while step * WIDE < len(labels[-1]) + 1:
        step *= 2
    line = "".join(label.ljust(WIDE * step) for label in labels[::step])
    return line.rstrip()
