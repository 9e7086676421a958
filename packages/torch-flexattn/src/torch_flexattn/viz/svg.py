"""A mask or a score modification as an SVG drawing, with positions at its sides, a legend and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from ..mods import MaskLike
from .cells import Cells
from .draw import Drawable, draw
from .mask import Level

SIDE = 480
"""Of the grid: the longer side, in pixels of the drawing."""
LEFT, TOP, LINE = 72, 66, 18
"""Room for labels, and the height of a line of words."""
LEGEND = 200
"""Width of a legend's entry."""
TICKS = 8
"""Labels along a side, at most."""


def svg(
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
    cells: int = 128,
) -> str:
    """A mask or a score modification as an SVG drawing; colours as in :func:`torch_flexattn.viz.png`.

    Args:
        what: see :func:`torch_flexattn.viz.text`, as are the arguments that are not here.
        q_len: queries.
        kv_len: keys.
        batch: which batch entry is shown.
        head: which head.
        block: queries and keys of a block.
        level: positions or blocks.
        value: the score that is modified.
        mask: what is hidden, of a score modification.
        cells: in each direction, at most.

    Returns:
        The content of the file.

    Raises:
        InputError: lengths that are missing or do not fit, no such batch or head, too many positions.
        KindError: neither a mask nor a score modification.

    Example:
        >>> from torch_flexattn import masks
        >>> svg(masks.causal(), 2048).startswith("<svg xmlns=")
        True

    Reference:
        W3C SVG 1.1, second edition, section 8 (paths).
    """
    return written(
        draw(what, q_len, kv_len, batch=batch, head=head, block=block, level=level, value=value, mask=mask, most=cells)
    )


def written(cells: Cells) -> str:
    """The drawing of some cells."""
    side = SIDE / max(cells.rows, cells.columns, 1)
    width, height = side * cells.columns, side * cells.rows
    body = [
        _words(LEFT, 20, cells.title, 'font-size="14"'),
        _words(LEFT + width / 2, TOP - 28, "keys", 'text-anchor="middle"'),
        _words(
            16,
            TOP + height / 2,
            "queries",
            f'text-anchor="middle" transform="rotate(-90 16 {_number(TOP + height / 2)})"',
        ),
        *_paths(cells, side),
        f'<rect x="{LEFT}" y="{TOP}" width="{_number(width)}" height="{_number(height)}" fill="none" stroke="#666"/>',
        *_ticks(cells, side),
        *_below(cells, TOP + height + 2 * LINE),
    ]
    whole = (
        max(LEFT + width, LEFT + LEGEND * len(cells.keys), LEFT + 7 * max(map(len, (cells.title, *cells.notes)))) + 24
    )
    tall = TOP + height + LINE * (3 + len(cells.notes)) + 8
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_number(whole)}" height="{_number(tall)}" '
        f'viewBox="0 0 {_number(whole)} {_number(tall)}" font-family="sans-serif" font-size="12" fill="#222">'
    )
    return "\n".join([opening, f"<title>{escape(cells.title)}</title>", _BACKGROUND, *body, "</svg>", ""])


_BACKGROUND = '<rect width="100%" height="100%" fill="#fff"/>'


def _paths(cells: Cells, side: float) -> list[str]:
    """One path a colour: a rectangle for every stretch of neighbouring cells in a row."""
    rectangles: dict[tuple[int, int, int], list[str]] = {}
    for row, colours in enumerate(cells.colours.tolist()):
        start = 0
        for column in range(1, len(colours) + 1):
            if column == len(colours) or colours[column] != colours[start]:
                length = column - start
                rectangles.setdefault(tuple(colours[start]), []).append(f"M{start} {row}h{length}v1h-{length}z")
                start = column
    scale = f'transform="translate({LEFT} {TOP}) scale({_number(side)})" shape-rendering="crispEdges"'
    return [f'<path fill="{_hex(c)}" {scale} d="{"".join(parts)}"/>' for c, parts in rectangles.items()]


def _ticks(cells: Cells, side: float) -> list[str]:
    """First positions of some cells along both sides."""
    found = []
    for column in _places(cells.columns):
        found.append(
            _words(LEFT + side * column, TOP - 8, f"{column * cells.cell[1]:,}", 'class="key" text-anchor="start"')
        )
    for row in _places(cells.rows):
        found.append(
            _words(LEFT - 6, TOP + side * row + 10, f"{row * cells.cell[0]:,}", 'class="query" text-anchor="end"')
        )
    return found


def _places(count: int) -> range:
    return range(0, count, -(-count // TICKS)) if count else range(0)


def _below(cells: Cells, top: float) -> list[str]:
    found = []
    for number, key in enumerate(cells.keys):
        x = LEFT + LEGEND * number
        found.append(
            f'<rect x="{x}" y="{_number(top - 11)}" width="12" height="12" fill="{_hex(key.colour)}" stroke="#999"/>'
        )
        found.append(_words(x + 18, top, key.meaning))
    return found + [_words(LEFT, top + LINE * (n + 1), note) for n, note in enumerate(cells.notes)]


def _words(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{_number(x)}" y="{_number(y)}"{" " * bool(more)}{more}>{escape(words)}</text>'


def _hex(colour: Sequence[int]) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)


def _number(value: float) -> str:
    return f"{value:.4f}".rstrip("0").rstrip(".")
