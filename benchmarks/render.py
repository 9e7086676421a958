"""Tables in READMEs and documentation, rendered from committed results.

A block begins with ``<!-- table: results/h200/torch-tcgnn.json tag=spmm -->`` and ends with ``<!-- end table -->``;
what lies between is ours to rewrite: one table a kind of case (the first part of its name). Words after the file:
``tag=TAG`` (cases and facts with that tag), ``cold`` (times with an empty L2), ``call`` (times on the host's clock),
``facts`` (facts instead of cases). What was not measured follows the tables, with its reason. A file has only names of
what was not run, so a block with tags lists all that is of the kind of a case it shows.

``python -m benchmarks.render`` rewrites the blocks, ``--check`` only reports stale ones (exit status 1).
"""

import argparse
import html
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import table
from benchmarks.provenance import ROOT
from benchmarks.result import Result, load

BLOCK = re.compile(
    r"^(?P<head><!-- table: (?P<file>\S+)(?P<words>[^\n]*?) -->\n)(?P<body>.*?)^(?P<tail><!-- end table -->)$",
    re.DOTALL | re.MULTILINE,
)

__all__ = ["BLOCK", "pages", "render"]


def pages(root: Path = ROOT) -> list[Path]:
    """The pages that may hold tables and quote figures."""
    found = [*root.glob("*.md"), *root.glob("packages/*/*.md"), *root.glob("integrations/*/*.md")]
    found += [page for page in root.glob("docs/**/*.md") if "_build" not in page.parts]
    return sorted(found)


def render(text: str, root: Path = ROOT) -> str:
    """The page with every block rewritten.

    Raises:
        ValueError: an unknown word, or nothing to show.
    """
    return BLOCK.sub(lambda found: found["head"] + _body(found["file"], found["words"], root) + found["tail"], text)


def _body(file: str, words: str, root: Path) -> str:
    path = root / "benchmarks" / file
    if not path.exists():
        raise ValueError(f"table block of {file}: there is no benchmarks/{file}")
    result = load(path)
    tags, kinds = [], set()
    for word in words.split():
        if word.startswith("tag="):
            tags.append(word.removeprefix("tag="))
        elif word in ("cold", "call", "facts"):
            kinds.add(word)
        else:
            raise ValueError(f"table block of {file}: unknown word {word!r}; allowed: tag=TAG, cold, call, facts")

    def chosen(items: Sequence) -> list:
        kept = [item for item in items if all(tag in item.tags for tag in tags)]
        if not kept:
            raise ValueError(f"table block of {file}{words}: nothing carries the tags {tags}")
        return kept

    of_facts = {table.kind(fact.name) for fact in result.facts}
    if "facts" in kinds:
        facts = chosen(result.facts)
        tables = [table.fact_rows(facts)]
        shown = {table.kind(fact.name) for fact in facts}
        missing = _missing(replace(result, cases=[]), shown)
    else:
        cases = chosen(result.cases)
        sample: table.Sample = "cold" if "cold" in kinds else "call" if "call" in kinds else "warm"
        tables = [table.case_rows(alike, sample) for alike in table.by_kind(cases)]
        shown = {table.kind(item.name) for item in cases} if tags else set(map(table.kind, result.not_run)) - of_facts
        missing = _missing(replace(result, cases=cases), shown)
    caption = f"*{result.device}, torch {result.versions['torch']}, commit {result.commit[:12]}, {result.date}*"
    return "\n\n".join([*map(table.markdown, tables), *missing, caption]) + "\n"


def _missing(result: Result, kinds: set[str]) -> list[str]:
    """A list of what the cases of `result` and the `kinds` lack, if anything."""
    not_run = {name: why for name, why in result.not_run.items() if table.kind(name) in kinds}
    lines = table.skipped_lines(replace(result, not_run=not_run))
    if not lines:
        return []
    return ["Not measured:", "\n".join(f"- {html.escape(' '.join(line.split()), quote=False)}" for line in lines)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite or check the pages of the checkout."""
    line = argparse.ArgumentParser(prog="python -m benchmarks.render")
    line.add_argument("--check", action="store_true", help="report stale blocks, write nothing")
    options = line.parse_args(arguments)
    stale = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        fresh = render(text)
        if fresh != text:
            stale.append(page)
            if not options.check:
                page.write_text(fresh, encoding="utf-8")
    for page in stale:
        print(f"{'stale' if options.check else 'rendered'}: {page.relative_to(ROOT)}")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
