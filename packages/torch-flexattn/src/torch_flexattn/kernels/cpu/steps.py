"""What a row of blocks sees, as steps: stretches of keys that are wide enough for a matrix product and fit in a tile.

Rows of small blocks are taken together. Keys of a step need not be neighbours: those of scattered blocks are put side
by side. Of a step, the parts that are partial are known, so that the mask is evaluated there alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...block_mask import BlockMask

FEWEST_ROWS = 128
"""Rows of blocks are taken together up to so many queries."""
MUCH = 1024
"""Full keys of a row from which on they are worth steps of their own."""
NONE, PARTIAL, FULL = 0, 1, 2
Kinds = tuple[int, ...]
"""Of a stretch of columns, for each of the rows of blocks that are taken together: none, partial or full."""


@dataclass(frozen=True)
class Span:
    """Keys ``start`` to ``stop``."""

    start: int
    stop: int
    kinds: Kinds

    @property
    def is_full(self) -> bool:
        return all(kind == FULL for kind in self.kinds)


@dataclass
class Step:
    """Keys whose scores are computed at once.

    Attributes:
        pieces: stretches of keys ``(start, stop)``, ascending; neighbours are one.
        partial: parts where the mask decides, with the column of the tile where each starts.
        width: number of keys.
        has_full: whether all queries see some of them.
    """

    pieces: list[tuple[int, int]] = field(default_factory=list)
    partial: list[tuple[Span, int]] = field(default_factory=list)
    width: int = 0
    has_full: bool = False

    def append(self, span: Span) -> None:
        if span.is_full:
            self.has_full = True
        else:
            self.partial.append((span, self.width))
        if self.pieces and self.pieces[-1][1] == span.start:
            self.pieces[-1] = (self.pieces[-1][0], span.stop)
        else:
            self.pieces.append((span.start, span.stop))
        self.width += span.stop - span.start


@dataclass(frozen=True)
class Rows:
    """Queries ``start`` to ``stop`` and the keys that they see; ``height`` is that of a block."""

    start: int
    stop: int
    height: int
    spans: list[Span]

    def steps(self, num_keys: int, widest: int, *, apart: bool = False) -> list[Step]:
        """Steps of about equal width, at most ``widest``, over keys below ``num_keys``.

        ``apart``: where much is full, it is not put into one step with what is partial.
        """
        spans = [Span(s.start, min(s.stop, num_keys), s.kinds) for s in self.spans if s.start < num_keys]
        full = [span for span in spans if span.is_full] if apart else []
        if sum(span.stop - span.start for span in full) < MUCH:
            return _steps(spans, widest)
        return _steps(full, widest) + _steps([span for span in spans if not span.is_full], widest)


def _steps(spans: list[Span], widest: int) -> list[Step]:
    total = sum(s.stop - s.start for s in spans)
    count = -(-total // widest)
    width = min(widest, -(-total // max(count, 1) // 16) * 16) if count > 1 else total
    steps: list[Step] = []
    room = 0
    for span in spans:
        start = span.start
        while start < span.stop:
            if room == 0:
                steps.append(Step())
                room = width
            stop = min(span.stop, start + room)
            steps[-1].append(Span(start, stop, span.kinds))
            room -= stop - start
            start = stop
    return steps


class AllRows:
    """Rows that see every key."""

    count = 0

    def __init__(self, q_len: int, num_keys: int) -> None:
        spans = [Span(0, num_keys, (FULL,))] if num_keys else []
        starts = range(0, q_len, FEWEST_ROWS)
        self._rows = [Rows(r, min(r + FEWEST_ROWS, q_len), FEWEST_ROWS, spans) for r in starts]

    def of(self, first_row: int) -> list[Rows]:
        """All, whatever ``first_row``: heads do not differ."""
        return self._rows


class RowsOfMask:
    """The rows of a block mask, read once a head of the mask.

    Attributes:
        count: rows of blocks of one head.
    """

    def __init__(self, mask: BlockMask) -> None:
        self._ptr, self._runs = mask.row_ptr.tolist(), mask.runs
        self._q_len, self._kv_len = mask.shape[2:]
        self._height, self._width = mask.block
        self.count = -(-self._q_len // self._height)
        self._known: dict[int, list[Rows]] = {}

    def of(self, first_row: int) -> list[Rows]:
        """Rows of the head whose first row of blocks is ``first_row``."""
        if first_row not in self._known:
            self._known = {first_row: self._read(first_row)}
        return self._known[first_row]

    def _read(self, first_row: int) -> list[Rows]:
        together = max(1, FEWEST_ROWS // self._height)
        ptr = self._ptr[first_row : first_row + self.count + 1]
        runs = self._runs[ptr[0] : ptr[-1]].tolist()
        found = []
        for row in range(0, self.count, together):
            end = min(row + together, self.count)
            of_row = [runs[ptr[r] - ptr[0] : ptr[r + 1] - ptr[0]] for r in range(row, end)]
            stop = min(end * self._height, self._q_len)
            found.append(Rows(row * self._height, stop, self._height, self._spans(of_row)))
        return found

    def _spans(self, rows: Sequence[Sequence[tuple[int, int]]]) -> list[Span]:
        if len(rows) == 1:
            return [self._span(start, code >> 1, (FULL if code & 1 else PARTIAL,)) for start, code in rows[0]]
        edges = sorted({edge for row in rows for start, code in row for edge in (start, code >> 1)})
        at = {edge: number for number, edge in enumerate(edges)}
        kinds = [[NONE] * len(rows) for _ in edges]
        for number, row in enumerate(rows):
            for start, code in row:
                for stretch in range(at[start], at[code >> 1]):
                    kinds[stretch][number] = FULL if code & 1 else PARTIAL
        stretches = zip(edges, edges[1:], kinds)
        return [self._span(start, stop, tuple(kind)) for start, stop, kind in stretches if any(kind)]

    def _span(self, start: int, stop: int, kinds: Kinds) -> Span:
        return Span(start * self._width, min(stop * self._width, self._kv_len), kinds)
