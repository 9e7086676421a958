"""Results as tables: aligned text for the terminal, Markdown for the documentation."""

from collections.abc import Sequence
from math import exp, floor, log, log10
from typing import Literal

from benchmarks.result import CaseResult, FactResult, Result

Row = Sequence[str]
Sample = Literal["warm", "cold", "call"]

__all__ = [
    "Sample",
    "by_kind",
    "case_rows",
    "fact_rows",
    "geometric_mean",
    "kind",
    "markdown",
    "number",
    "skipped_lines",
    "terminal",
]


def number(value: float) -> str:
    """Three significant digits, thousands separated.

    >>> number(0.012345), number(3.4), number(12345.6)
    ('0.0123', '3.40', '12,346')
    """
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e9 or size < 1e-4:
        return f"{value:.2e}"
    return f"{value:,.{max(0, 2 - floor(log10(size)))}f}"


def geometric_mean(values: Sequence[float]) -> float:
    """The mean that ratios have.

    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    if not values:
        raise ValueError("geometric mean of no values")
    return exp(sum(log(value) for value in values) / len(values))


def case_rows(cases: Sequence[CaseResult], sample: Sample = "warm") -> list[Row]:
    """A header and one row a case: our time, then for each peer its time and how many times faster ours is.

    With two cases or more the last row has the geometric mean of each peer's ratio over the cases it ran in.
    """
    kinds = [(case, {"warm": case, "cold": case.cold, "call": case.call}[sample]) for case in cases]
    timed = [(case, times) for case, times in kinds if times is not None]
    peers = list(dict.fromkeys(peer for _, times in timed for peer in times.peers_ms))
    rows: list[Row] = [["case", "ours ms", *peers, "% of roof"]]
    for case, times in timed:
        cells = [
            f"{number(times.peers_ms[peer])} ({times.speedup[peer]:.2f}×)" if peer in times.peers_ms else "–"
            for peer in peers
        ]
        roof = (
            f"{100 * case.roofline.fraction:.0f} % {case.roofline.bound}" if case.roofline and sample == "warm" else "–"
        )
        rows.append([case.name, number(times.ours_ms), *cells, roof])
    if len(timed) > 1:
        means = [geometric_mean([t.speedup[peer] for _, t in timed if peer in t.speedup]) for peer in peers]
        rows.append(["geometric mean", "", *(f"{mean:.2f}×" for mean in means), ""])
    return rows


def by_kind(cases: Sequence[CaseResult]) -> list[list[CaseResult]]:
    """The cases grouped by kind, the first part of their names: each kind has peers of its own."""
    kinds: dict[str, list[CaseResult]] = {}
    for case in cases:
        kinds.setdefault(kind(case.name), []).append(case)
    return list(kinds.values())


def kind(name: str) -> str:
    """The first part of a name, which cases with the same peers share.

    >>> kind("spmm/cora/d64")
    'spmm'
    """
    return name.split("/")[0]


def fact_rows(facts: Sequence[FactResult]) -> list[Row]:
    """A header and one row a fact."""
    rows: list[Row] = [["fact", "value", "target"]]
    for fact in facts:
        spread = f" ± {number(fact.std)} ({len(fact.seeds)} seeds)" if fact.std is not None else ""
        verdict = "" if fact.met is None else " (met)" if fact.met else " (missed)"
        rows.append([fact.name, f"{number(fact.value)} {fact.unit}".rstrip() + spread, fact.target + verdict])
    return rows


def skipped_lines(result: Result) -> list[str]:
    """One line for everything that was not measured, with its reason; equal reasons share a line."""
    cases_of: dict[tuple[str, str], list[str]] = {}
    for case in result.cases:
        for peer, reason in case.peers_skipped.items():
            cases_of.setdefault((peer, reason), []).append(case.name)
    lines = [
        f"{peer}: {reason} [{names[0] if len(names) == 1 else f'{len(names)} cases'}]"
        for (peer, reason), names in cases_of.items()
    ]
    return lines + [f"{name}: {reason.replace(f': {name}: ', ': ', 1)}" for name, reason in result.not_run.items()]


def terminal(rows: Sequence[Row]) -> str:
    """Columns padded to one width; the first is left-aligned, the others right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row: Row) -> str:
        first, *others = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join([first, *others]).rstrip()

    return "\n".join([line(rows[0]), "  ".join("-" * width for width in widths), *map(line, rows[1:])])


def markdown(rows: Sequence[Row]) -> str:
    """A pipe table."""
    header, *body = rows
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *body]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)
