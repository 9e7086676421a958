"""A line on standard error, while what takes longer than a second goes on."""

from __future__ import annotations

import sys
import time

PATIENCE = 1.0
"""Seconds without a word."""


class Progress:
    """Counts steps.

    Args:
        what: is going on.
        total: steps.
    """

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0
        self._began, self._said = time.monotonic(), False

    def step(self, name: str) -> None:
        """Another one begins."""
        self.done += 1
        if time.monotonic() - self._began > PATIENCE:
            self._said = True
            self._write(f"torch-flexattn: {self.what}, {self.done} of {self.total}: {name}")

    def close(self, result: str) -> None:
        """The last one is over."""
        if self._said:
            self._write(f"torch-flexattn: {self.what}: {result}")

    def _write(self, line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
