"""The demo's report: one self-contained HTML page, with its style and its pictures inside.

Takes the outcomes of `examples/demo.py` and knows nothing of how they came about.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

STYLE = Path(__file__).with_name("page.css")


@dataclass(frozen=True)
class Figure:
    """A picture with its words: an SVG document or the bytes of a PNG file, one of the two."""

    title: str
    caption: str = ""
    svg: str | None = None
    png: bytes | None = None

    def __post_init__(self) -> None:
        if (self.svg is None) == (self.png is None):
            raise ValueError(
                f"figure {self.title!r} needs either svg or png, got {'neither' if self.svg is None else 'both'}"
            )
        if self.svg is not None and "<svg" not in self.svg:
            raise ValueError(f"figure {self.title!r}: svg is not an SVG document, it begins {self.svg[:40]!r}")
        if self.png is not None and not self.png.startswith(b"\x89PNG\r\n\x1a\n"):
            raise ValueError(f"figure {self.title!r}: png is not the content of a PNG file, it begins {self.png[:8]!r}")

    @property
    def source(self) -> str:
        """The picture as a data address, so that the page needs no second file and no two SVGs share identifiers."""
        kind, content = ("svg+xml", self.svg.encode()) if self.svg is not None else ("png", self.png or b"")
        return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


@dataclass(frozen=True)
class Outcome:
    """What came of one section; `error` holds the traceback of one that failed."""

    name: str
    title: str
    summary: str
    seconds: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str | None = None

    @property
    def columns(self) -> list[str]:
        """Every key of the rows, in order of first appearance."""
        return list(dict.fromkeys(str(key) for row in self.rows for key in row))

    def is_numeric(self, column: str) -> bool:
        """Whether a column holds numbers alone: it is then aligned to the right."""
        values = [row[column] for row in self.rows if row.get(column) is not None]
        return bool(values) and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)

    def is_short(self, column: str) -> bool:
        """Whether no text of a column is long: it then stays on one line."""
        return all(len(cell(row.get(column))) <= 24 for row in self.rows)


def cell(value: object) -> str:
    """A value as a reader wants it.

    >>> [cell(v) for v in (None, True, 12345, 0.123456, 98765.4, 1.5e-7, "cora")]
    ['–', 'yes', '12,345', '0.1235', '98,765', '1.5e-07', 'cora']
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
    return str(value)


def write_page(outcomes: Sequence[Outcome], folder: Path, *, versions: Mapping[str, str], seconds: float) -> Path:
    """Write `folder`/index.html and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    path.write_text(page(outcomes, versions=versions, seconds=seconds), encoding="utf-8")
    return path


def page(outcomes: Sequence[Outcome], *, versions: Mapping[str, str], seconds: float) -> str:
    """The whole document."""
    failed = sum(outcome.error is not None for outcome in outcomes)
    verdict = f"{failed} of {len(outcomes)} failed" if failed else f"{len(outcomes)} of {len(outcomes)} ran"
    when = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    facts = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in versions.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Demo report</title>
<style>
{STYLE.read_text(encoding="utf-8")}</style>
</head>
<body>
<header>
<h1>Demo report</h1>
<p class="lede">{escape(verdict)} in {seconds:.0f} s · {escape(when)}</p>
<dl class="facts">{facts}</dl>
</header>
<main>
{overview(outcomes)}
{"".join(section(outcome) for outcome in outcomes)}
</main>
</body>
</html>
"""


def overview(outcomes: Sequence[Outcome]) -> str:
    """One line a package, each leading to its section."""
    lines = "".join(
        f'<tr><td class="short"><a href="#{escape(o.name)}">{escape(o.name)}</a></td><td>{badge(o)}</td>'
        f'<td class="number">{o.seconds:.1f}</td><td>{escape(o.summary)}</td></tr>'
        for o in outcomes
    )
    head = '<tr><th>package</th><th>result</th><th class="number">seconds</th><th>outcome</th></tr>'
    return f'<div class="scroll"><table class="overview"><thead>{head}</thead><tbody>{lines}</tbody></table></div>'


def badge(outcome: Outcome) -> str:
    return '<span class="badge bad">failed</span>' if outcome.error else '<span class="badge good">ok</span>'


def section(outcome: Outcome) -> str:
    """One package: headline, outcome, table, pictures, notes; or its traceback."""
    parts = [f'<section id="{escape(outcome.name)}"><p class="eyebrow">{escape(outcome.name)}</p>']
    parts.append(f"<h2>{escape(outcome.title)}</h2><p>{escape(outcome.summary)}</p>")
    if outcome.error:
        parts.append(f"<pre>{escape(outcome.error)}</pre>")
    if outcome.rows:
        parts.append(rows_table(outcome))
    if outcome.figures:
        parts.append(f'<div class="figures">{"".join(map(figure, outcome.figures))}</div>')
    if outcome.notes:
        parts.append(f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in outcome.notes)}</ul>')
    return "".join(parts) + "</section>\n"


def rows_table(outcome: Outcome) -> str:
    kinds = {n: "number" if outcome.is_numeric(n) else "short" if outcome.is_short(n) else "" for n in outcome.columns}
    marks = {name: f' class="{kind}"' if kind else "" for name, kind in kinds.items()}
    head = "".join(f"<th{mark}>{escape(name)}</th>" for name, mark in marks.items())
    body = "".join(
        f"<tr>{''.join(f'<td{mark}>{escape(cell(row.get(name)))}</td>' for name, mark in marks.items())}</tr>"
        for row in outcome.rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def figure(picture: Figure) -> str:
    words = f"<strong>{escape(picture.title)}.</strong> {escape(picture.caption)}".strip()
    return (
        f'<figure><img src="{picture.source}" alt="{escape(picture.title)}"><figcaption>{words}</figcaption></figure>'
    )
