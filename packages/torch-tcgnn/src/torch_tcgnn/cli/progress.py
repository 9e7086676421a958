"""Progress of long work on standard error: a bar by rich or tqdm where one is installed, else a line a step."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def track(steps: Sequence[T], label: str) -> Iterable[T]:
    """Go through ``steps`` and show how far it is."""
    if sys.stderr.isatty():
        if importlib.util.find_spec("rich") is not None:
            return _rich(steps, label)
        if importlib.util.find_spec("tqdm") is not None:
            from tqdm import tqdm

            return tqdm(steps, desc=label, file=sys.stderr)
    return _lines(steps, label)


def _rich(steps: Sequence[T], label: str) -> Iterable[T]:
    from rich.console import Console
    from rich.progress import track as bar

    return bar(steps, description=label, total=len(steps), console=Console(stderr=True))


def _lines(steps: Sequence[T], label: str) -> Iterator[T]:
    for done, step in enumerate(steps, start=1):
        shown = step if isinstance(step, str) else ", ".join(map(str, step)) if isinstance(step, tuple) else step
        print(f"{label} {done}/{len(steps)}: {shown}", file=sys.stderr, flush=True)
        yield step
