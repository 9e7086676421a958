"""The demo: every package on real data, with progress in the terminal and a report to open in a browser.

Run it as `nox -s demo`, or `python examples/demo.py [--data DIR] [--only torch-tcgnn] [--out demo-report] [--seed 0]`.

**The contract of a section.** A package shows itself with one function, which needs nothing from here:

    def section(progress: Callable[[float, str], None], data: Path | None, seed: int) -> dict

`progress(fraction, message)` moves the package's bar (0.0 to 1.0). `data` is the folder of real data sets that the user
named, or None: then the section takes data that installs with its dependencies. The dict it returns is plain data:

    title    str                 what was done, as a headline
    summary  str                 one sentence with the outcome; it stands in the closing table
    rows     list of dicts       the section's table: column -> text, number, bool or None (may be empty)
    figures  list of dicts       {"title": str, "caption": str, and "svg": str or "png": bytes} (may be left out)
    notes    list of str         what a careful reader should know: settings, limits, data sources (may be left out)

It is found by an entry point, in the package's pyproject.toml:

    [project.entry-points."torch_ext.demo"]
    torch-tcgnn = "torch_tcgnn.demo:section"

A section that raises is reported in the table and the report, the others still run, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import platform
import sys
import time
import tomllib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo_page import Figure, Outcome, cell, write_page
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
GROUP = "torch_ext.demo"
VERSIONS = ("torch", "triton", "numpy", "torch-geometric", "lightning", "scikit-learn", "rdkit")

Section = Callable[[Callable[[float, str], None], Path | None, int], Mapping[str, Any]]


@dataclass(frozen=True)
class Found:
    """A section that some package declares: loaded only when it runs, so that a broken one breaks only itself."""

    name: str
    target: str = field(metadata={"doc": "module:function"})

    def load(self) -> Section:
        module, _, function = self.target.partition(":")
        return getattr(importlib.import_module(module), function)


def find_sections(root: Path = ROOT) -> list[Found]:
    """Sections of installed packages, and of a bare checkout's packages (whose src folder then goes on the path)."""
    found = {e.name: Found(e.name, e.value) for e in importlib.metadata.entry_points(group=GROUP)}
    for project in sorted(root.glob("packages/*/pyproject.toml")):
        declared = tomllib.loads(project.read_text()).get("project", {}).get("entry-points", {}).get(GROUP, {})
        for name, target in declared.items():
            if name not in found:
                found[name] = Found(name, target)
                sys.path.append(str(project.parent / "src"))
    return [found[name] for name in sorted(found)]


def checked(result: object) -> tuple[str, str, list[dict[str, Any]], list[Figure], list[str]]:
    """The parts of a section's result, or a ValueError that says what is wrong with it."""
    if not isinstance(result, Mapping):
        raise TypeError(f"a section returns a dict, got {type(result).__name__}")
    unknown = set(result) - {"title", "summary", "rows", "figures", "notes"}
    missing = {"title", "summary", "rows"} - set(result)
    if unknown or missing:
        raise ValueError(f"a section's dict has unknown keys {sorted(unknown)} and lacks {sorted(missing)}")
    for key in ("title", "summary"):
        if not isinstance(result[key], str) or not result[key].strip():
            raise ValueError(f"a section's {key!r} must be a non-empty str, got {result[key]!r}")
    rows = [dict(row) for row in result["rows"]]
    figures = [Figure(**figure) for figure in result.get("figures", ())]
    return result["title"], result["summary"], rows, figures, [str(note) for note in result.get("notes", ())]


def run_section(found: Found, progress: Callable[[float, str], None], data: Path | None, seed: int) -> Outcome:
    """Run one section; whatever it raises becomes part of the outcome."""
    began = time.perf_counter()
    try:
        title, summary, rows, figures, notes = checked(found.load()(progress, data, seed))
    except Exception as error:
        return Outcome(
            name=found.name,
            title="This section failed",
            summary=f"{type(error).__name__}: {error}",
            seconds=time.perf_counter() - began,
            error=traceback.format_exc(),
        )
    return Outcome(found.name, title, summary, time.perf_counter() - began, rows, figures, notes)


def run_all(sections: list[Found], data: Path | None, seed: int, console: Console) -> list[Outcome]:
    """Run the sections one after the other, a progress bar each."""
    columns = (
        TextColumn("[bold]{task.fields[name]}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    outcomes = []
    with Progress(*columns, console=console) as bars:
        tasks = [bars.add_task("waiting", name=found.name, total=1.0, start=False) for found in sections]
        for task, found in zip(tasks, sections, strict=True):
            bars.start_task(task)

            def progress(fraction: float, message: str, task: Any = task) -> None:
                bars.update(task, completed=min(max(fraction, 0.0), 1.0), description=message)

            outcome = run_section(found, progress, data, seed)
            bars.update(task, completed=1.0, description="[red]failed" if outcome.error else "[green]done")
            bars.stop_task(task)
            outcomes.append(outcome)
    return outcomes


def print_outcomes(outcomes: list[Outcome], console: Console) -> None:
    """The tables of all sections, then one line a package."""
    for outcome in outcomes:
        if outcome.error:
            console.print(f"\n[bold red]{outcome.name}[/] failed:")
            console.print(outcome.error, markup=False, highlight=False)
        elif outcome.rows:
            table = Table(title=f"{outcome.name}: {outcome.title}", title_justify="left")
            for name in outcome.columns:
                table.add_column(name, justify="right" if outcome.is_numeric(name) else "left", overflow="fold")
            for row in outcome.rows:
                table.add_row(*(cell(row.get(name)) for name in outcome.columns))
            console.print("\n", table, sep="")
    closing = Table(title="All sections", title_justify="left")
    for name, justify in (("package", "left"), ("result", "left"), ("seconds", "right"), ("outcome", "left")):
        closing.add_column(name, justify=justify, overflow="fold")
    for outcome in outcomes:
        state = "[red]FAILED[/]" if outcome.error else "[green]ok[/]"
        closing.add_row(outcome.name, state, f"{outcome.seconds:.1f}", outcome.summary)
    console.print("\n", closing, sep="")


def versions() -> dict[str, str]:
    """What a reader needs to repeat the run: Python, the machine, and the libraries that are installed."""
    known = {"Python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for name in VERSIONS:
        try:
            known[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    import torch

    cuda = torch.cuda.is_available()
    known["device"] = torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} thread(s)"
    return known


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the packages' demo sections and write a report.")
    parser.add_argument(
        "--data", type=Path, help="folder of real data sets; default: data that installs with the packages"
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="run only this package's section (repeatable)")
    parser.add_argument(
        "--out", type=Path, default=Path("demo-report"), help="folder of the report (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed given to every section (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.data is not None and not options.data.is_dir():
        parser.error(f"--data {options.data}: not a folder")
    sections = find_sections()
    names = [found.name for found in sections]
    if unknown := set(options.only or ()) - set(names):
        parser.error(f"--only {', '.join(sorted(unknown))}: no such section; there are {', '.join(names) or 'none'}")
    if options.only:
        sections = [found for found in sections if found.name in options.only]
    if not sections:
        parser.error(f"no package declares a section (entry-point group {GROUP!r})")

    console = Console()
    began = time.perf_counter()
    outcomes = run_all(sections, options.data, options.seed, console)
    print_outcomes(outcomes, console)
    page = write_page(outcomes, options.out, versions=versions(), seconds=time.perf_counter() - began)
    console.print(f"\nreport: {page}")
    return 1 if any(outcome.error for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
