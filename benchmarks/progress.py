"""A line on stderr that says how far a long run is: a bar on a terminal, one line a step in a log."""

import sys
import time
from typing import TextIO

__all__ = ["Progress"]


class Progress:
    """Count `total` steps.

    Example:
        >>> progress = Progress(2, stream=sys.stdout)
        >>> progress.step("spmm/cora")
        [1/2] spmm/cora ...
    """

    def __init__(self, total: int, *, stream: TextIO | None = None) -> None:
        self.total = total
        self.done = 0
        self._stream = stream or sys.stderr
        self._start = time.monotonic()

    def step(self, name: str) -> None:
        """Announce the next step."""
        self.done += 1
        if not self._stream.isatty():
            print(f"[{self.done}/{self.total}] {name} ...", file=self._stream, flush=True)
            return
        filled = 24 * (self.done - 1) // self.total
        elapsed = time.monotonic() - self._start
        bar = "█" * filled + "░" * (24 - filled)
        print(f"\r\x1b[K{bar} {self.done}/{self.total} {elapsed:.0f} s  {name}", end="", file=self._stream, flush=True)

    def close(self) -> None:
        """Clear the bar."""
        if self._stream.isatty():
            print("\r\x1b[K", end="", file=self._stream, flush=True)
