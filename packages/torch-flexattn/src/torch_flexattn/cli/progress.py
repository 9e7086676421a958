"""A bar on a terminal that says how far a long run is. Elsewhere, as in a log, nothing: lines of results say it."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 24


class Progress:
    """Count steps.

    Args:
        total: steps there are.
        stream: where the bar is drawn; default: standard error.
    """

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self.total = total
        self.done = 0
        self.name = ""
        self._stream = sys.stderr if stream is None else stream
        self._began = time.monotonic()

    def step(self, name: str) -> None:
        """The next step begins."""
        self.done += 1
        self.name = name
        self.note("")

    def note(self, what: str) -> None:
        """What of the step goes on."""
        if not self._stream.isatty():
            return
        full = WIDTH * (self.done - 1) // self.total
        bar = "█" * full + "░" * (WIDTH - full)
        seconds = time.monotonic() - self._began
        words = f"{bar} {self.done}/{self.total} {seconds:.0f} s  {self.name}{f': {what}' if what else ''}"
        self._draw(words)

    def clear(self) -> None:
        """Take the bar away, so that a line can be printed."""
        if self._stream.isatty():
            self._draw("")

    def _draw(self, words: str) -> None:
        print(f"\r\x1b[K{words}", end="", file=self._stream, flush=True)
