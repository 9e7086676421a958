"""Speed-ups as an SVG drawing: a row a case, a dot a peer, on a logarithmic scale. No plotting library is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from .race import Result
from .report import means

ROW, LEFT, WIDTH, TOP = 18, 300, 520, 58
"""Pixels: a row's height, room for names of cases, the scale, room above."""
RADIUS = 4.5
COLOURS = ("#b4451f", "#33658a", "#6a994e", "#8a5a9e", "#d19a1c", "#3a9d9d", "#a4243b", "#6b6b6b", "#1d3557", "#7f4f24")
MARKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
KEY_WIDTH = 150
KEYS_A_LINE = 5


def svg(title: str, found: Mapping[str, Sequence[Result]]) -> str:
    """The drawing.

    Args:
        title: above it.
        found: results by suite; cases without a measured peer have no row.

    Returns:
        The content of the file.
    """
    shown = {suite: [r for r in results if r.speedup] for suite, results in found.items()}
    everything = [r for results in shown.values() for r in results]
    peers = list(dict.fromkeys(name for r in everything for name in r.speedup))
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(peers)}
    ratios = [ratio for r in everything for ratio in r.speedup.values()]
    low, high = _ends(ratios)
    top = TOP + ROW * math.ceil(len(peers) / KEYS_A_LINE)
    body, y = [*_legend(colours, means(everything, peers))], top + ROW
    for suite, results in shown.items():
        if results:
            body.append(_words(8, y + 4, f"suite {suite}", 'font-weight="bold"'))
            y += ROW
        for result in results:
            body += _row(result, y, colours, low, high)
            y += ROW
    if not everything:
        body.append(_words(8, y, "no peer was measured"))
        y += ROW
    frame = _scale(top, y, low, high)
    size = f'width="{LEFT + WIDTH + 30}" height="{y + 34}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11" fill="#222">'
    head = [f"<title>{escape(title)}</title>", '<rect width="100%" height="100%" fill="#fff"/>']
    head += [
        _words(8, 20, title, 'font-size="14"'),
        _words(8, 38, "time of a peer / time of ours, and geometric means of it: right of 1× ours is faster"),
    ]
    return "\n".join([opening, *head, *frame, *body, "</svg>", ""])


def _ends(ratios: Sequence[float]) -> tuple[float, float]:
    """Of the scale: marks around all ratios, and around 1."""
    low = max((m for m in MARKS if m < min([0.9, *ratios])), default=min([MARKS[0], *ratios]))
    high = min((m for m in MARKS if m > max([1.1, *ratios])), default=max([MARKS[-1], *ratios]))
    return low, high


def _place(ratio: float, low: float, high: float) -> float:
    return LEFT + WIDTH * math.log(ratio / low) / math.log(high / low)


def _scale(top: float, bottom: float, low: float, high: float) -> list[str]:
    found = []
    for mark in (m for m in MARKS if low <= m <= high):
        x = _place(mark, low, high)
        line = 'stroke="#222"' if mark == 1 else 'stroke="#ddd"'
        found.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom:.1f}" {line}/>')
        found.append(_words(x, bottom + 16, f"{mark:g}×", 'text-anchor="middle"'))
    return found


def _legend(colours: Mapping[str, str], found: Mapping[str, float]) -> list[str]:
    body = []
    for number, (name, colour) in enumerate(colours.items()):
        x, y = 14 + KEY_WIDTH * (number % KEYS_A_LINE), TOP + ROW * (number // KEYS_A_LINE)
        body.append(f'<circle cx="{x}" cy="{y - 4}" r="{RADIUS}" fill="{colour}"/>')
        body.append(_words(x + 9, y, f"{name} {found[name]:.2f}×"))
    return body


def _row(result: Result, y: float, colours: Mapping[str, str], low: float, high: float) -> list[str]:
    body = [_words(LEFT - 10, y + 4, result.name, 'text-anchor="end"')]
    for name, ratio in result.speedup.items():
        x = _place(ratio, low, high)
        note = f"<title>{escape(name)}: {result.peers_ms[name]:.3f} ms, {ratio:.2f}×</title>"
        body.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" fill="{colours[name]}" fill-opacity="0.85">{note}</circle>'
        )
    return body


def _words(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{" " * bool(more)}{more}>{escape(words)}</text>'
