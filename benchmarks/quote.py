"""The figure check: every performance figure in a page must come from a committed result file.

A page quotes ``3.4×<!-- figure: results/h200/torch-tcgnn.json#cases/NAME/speedup/PEER -->``: an invisible comment,
whose path is one of `benchmarks.lookup`. A few words without digits may stand between figure and comment. The check
compares at the precision that is quoted. A figure like ``3.4×`` or ``40 % faster`` without such a comment is a fault
too, unless it is in code, in a rendered table, a bound (``≥ 2×``), or marked ``<!-- not measured: reason -->``
(somebody else's published number, say).

``python -m benchmarks.quote`` checks the READMEs and docs/ of the checkout.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from benchmarks.lookup import lookup
from benchmarks.provenance import ROOT
from benchmarks.render import BLOCK, pages
from benchmarks.result import load

_UNITS = {
    **dict.fromkeys(("", "×", "x"), ("ratio", 1.0)),
    "%": ("ratio", 0.01),
    **{unit: ("time", factor) for unit, factor in {"ns": 1e-9, "µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0}.items()},
    **{unit: ("bytes", float(1 << shift)) for unit, shift in {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30}.items()},
    **{unit: ("bytes", factor) for unit, factor in {"kB": 1e3, "MB": 1e6, "GB": 1e9}.items()},
}
_NUMBER = r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?"
_UNIT = "|".join(sorted((re.escape(unit) for unit in _UNITS if unit), key=len, reverse=True))
_QUOTED = re.compile(
    rf"(?:(?P<number>{_NUMBER})\s?(?P<after>(?P<unit>(?:{_UNIT})(?!\w)|)[^\d<\n|]{{0,60}}?)\s*)?"
    r"<!--\s*figure:\s*(?P<source>\S+)\s*-->"
)
_CODE = re.compile(r"^(```+|~~~+).*?^\1|`[^`\n]+`", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CLAIM = re.compile(
    rf"(?<![≥≤<>=] )(?<![≥≤<>=] \*\*)(?<![≥≤<>=]){_NUMBER}\s?(?:(?:×|x)(?!\w)(?!\s?\d)"
    r"|%[*_]*\s+(?:faster|slower|less|lower|more|higher|fewer|smaller|of (?:the )?(?:roof|peak|bandwidth))"
    r"|times (?:faster|slower|less|fewer|smaller|the speed|as fast))"
)
_EXCUSED = re.compile(_CLAIM.pattern + r"[*_)]*\s*<!--\s*not measured:\s*\S[^>]*-->")

__all__ = ["Fault", "Quote", "check", "quotes", "sourceless"]


@dataclass(frozen=True)
class Quote:
    """A figure in a page, the words between it and its comment, and the path it claims to come from."""

    line: int
    number: str
    unit: str
    after: str
    source: str


@dataclass(frozen=True)
class Fault:
    """What is wrong, and where."""

    page: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.reason}"


def quotes(text: str) -> Iterator[Quote]:
    """Every ``<!-- figure: … -->`` of a page with the number before it (empty where there is none).

    >>> next(quotes("It is **3.4×**<!-- figure: results/a/b.json#cases/c/speedup/d -->."))
    Quote(line=1, number='3.4', unit='×', after='×**', source='results/a/b.json#cases/c/speedup/d')
    """
    for found in _QUOTED.finditer(_blank(_CODE, text)):
        line = text.count("\n", 0, found.start("source")) + 1
        yield Quote(line, found["number"] or "", found["unit"] or "", found["after"] or "", found["source"])


def sourceless(text: str) -> Iterator[tuple[int, str]]:
    """Line and wording of every performance figure without a source."""
    for pattern in (BLOCK, _CODE, _QUOTED, _EXCUSED, _COMMENT):
        text = _blank(pattern, text)
    for found in _CLAIM.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, found[0]


def check(root: Path = ROOT, only: Sequence[Path] | None = None) -> list[Fault]:
    """All faults of the pages; a package with committed results must quote one in its README."""
    faults: list[Fault] = []
    quoting: set[Path] = set()
    for page in pages(root) if only is None else only:
        text, name = page.read_text(encoding="utf-8"), page.relative_to(root).as_posix()
        for quote in quotes(text):
            quoting.add(page)
            if reason := _wrong(quote, root):
                faults.append(Fault(name, quote.line, reason))
        for line, wording in sourceless(text):
            faults.append(Fault(name, line, f"{wording!r} has no <!-- figure: … --> source"))
    if only is None:
        for package in sorted({path.stem for path in root.glob("benchmarks/results/*/*.json")}):
            readme = root / "packages" / package / "README.md"
            if readme not in quoting:
                reason = f"benchmarks/results has figures of {package}; its README quotes none"
                faults.append(Fault(f"packages/{package}/README.md", 1, reason))
    return faults


def _wrong(quote: Quote, root: Path) -> str:
    """Why a quote does not hold; empty when it does."""
    if not quote.number:
        return f"figure comment follows no figure: {quote.source}"
    file, _, path = quote.source.partition("#")
    try:
        value, unit = lookup(load(root / "benchmarks" / file), path)
    except (OSError, ValueError, KeyError) as error:
        return f"{quote.number}{quote.unit}: source cannot be read: {error}"
    if unit not in _UNITS:
        scale, same = 1.0, quote.after.startswith(unit)
    else:
        (kind, have), (wanted, want) = _UNITS[quote.unit], _UNITS[unit]
        scale, same = have / want, kind == wanted
    if not same:
        return f"{quote.number}{quote.unit}: the source is in {unit or 'no unit'!r}"
    number = Decimal(quote.number.replace(",", ""))
    exponent = number.as_tuple().exponent
    half_step = 0.5 * 10.0 ** (exponent if isinstance(exponent, int) else 0)
    if abs(float(number) - value / scale) > half_step * (1 + 1e-9):
        return f"quotes {quote.number}{quote.unit}, the source says {value / scale:.6g}{quote.unit}"
    return ""


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """The text with every match replaced by spaces; line numbers stay."""
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def main() -> int:
    """Print the faults; exit status 1 when there are any."""
    faults = check()
    for fault in faults:
        print(fault)
    if not faults:
        print(f"{sum(len(list(quotes(page.read_text()))) for page in pages())} quoted figures agree with their sources")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
