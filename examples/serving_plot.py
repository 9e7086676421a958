"""Pages and requests over time as an SVG drawing; no plotting library is needed. flexattn_serving.py draws with it."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, GAP = 640, 130, 56, 40, 46
INK, PALE = "#222", "#ddd"

Line = tuple[str, str, Sequence[float]]
"""What it is, its colour, its values."""


def panel(times: Sequence[float], title: str, lines: Sequence[Line], most: float, top: float) -> list[str]:
    """Stairs over time: a value holds until the next."""
    end = max(times[-1], 1e-9)
    drawn = [
        f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="{PALE}"/>',
        f'<text x="{LEFT}" y="{top - 8}">{escape(title)}</text>',
    ]
    for share in (0, 0.5, 1):
        y = top + HEIGHT * (1 - share)
        drawn.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{most * share:g}</text>')
    for number, (name, colour, values) in enumerate(lines):
        steps, before = [], None
        for time, value in zip(times, values):
            x, y = LEFT + WIDTH * time / end, top + HEIGHT * (1 - value / most)
            steps.append(f"M{x:.1f} {y:.1f}" if before is None else f"H{x:.1f}V{y:.1f}")
            before = value
        drawn.append(f'<path d="{"".join(steps)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        x = LEFT + WIDTH - 110 * (len(lines) - number) + 4
        drawn.append(f'<text x="{x}" y="{top - 8}" fill="{colour}">{escape(name)}</text>')
    return drawn


def svg(title: str, times: Sequence[float], pages: int, used: Sequence[int], requests: dict[str, Sequence[int]]) -> str:
    """The drawing.

    Args:
        title: above it.
        times: of the samples, in seconds, ascending.
        pages: of the cache.
        used: pages that are not free, at each time.
        requests: how many, at each time, by what they do.
    """
    colours = ["#b4451f", "#33658a", "#6a994e"]
    most = max(1, *(max(values) for values in requests.values()))
    second = TOP + HEIGHT + GAP
    body = panel(times, "pages", [("in use", colours[0], used)], pages, TOP + 16)
    named = [(name, colour, values) for (name, values), colour in zip(requests.items(), colours)]
    body += panel(times, "requests", named, most, second + 16)
    below = second + HEIGHT + 34
    body += [
        f'<text x="{LEFT}" y="{below}">0</text>',
        f'<text x="{LEFT + WIDTH}" y="{below}" text-anchor="end">{times[-1]:.2f} s of simulated time</text>',
    ]
    size = f'width="{LEFT + WIDTH + 24}" height="{below + 12}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" fill="{INK}">',
            f'<title>{escape(title)}</title><rect width="100%" height="100%" fill="#fff"/>',
            f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>',
            *body,
            "</svg>\n",
        ]
    )
