"""Which pages belong to which sequence: plain bookkeeping, no tensors.

Pages are counted by how many sequences hold them. A page that several hold is read only: who writes to it gets a copy
first. Every method either does all of what it is asked, or raises and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from typing import NewType

from ..errors import InputError, KindError, NoSuchSequence, OutOfPages, OutOfSequences

SeqId = NewType("SeqId", int)
"""A sequence; numbers are not used again."""


@dataclass
class Sequence:
    """One sequence.

    Attributes:
        slot: its row in the table of pages.
        length: its tokens.
        pages: that hold them, and pages in reserve behind them, which no other sequence holds.
    """

    slot: int
    length: int = 0
    pages: list[int] = field(default_factory=list)


class Allocator:
    """Hands out pages.

    Attributes:
        sequences: those that live.
        holders: how many sequences hold each page.
        free: pages that none holds; the last is the next.
        changed: what changed since it was last asked: new entries of the table, by ``slot · width + number``.
        resized: likewise new lengths, by slot.
        copies: likewise pages to copy, from and to.
    """

    def __init__(self, num_pages: int, page_size: int, max_seqs: int, width: int) -> None:
        self.page_size = page_size
        self.width = width
        self.sequences: dict[SeqId, Sequence] = {}
        self.holders = [0] * num_pages
        self.free = list(range(num_pages - 1, -1, -1))
        self.changed: dict[int, int] = {}
        self.resized: dict[int, int] = {}
        self.copies: list[tuple[int, int]] = []
        self._slots = list(range(max_seqs - 1, -1, -1))
        self._max_seqs = max_seqs
        self._next = 0

    def of(self, seq: SeqId) -> Sequence:
        """The sequence of a number.

        Raises:
            NoSuchSequence: there is none, or it was freed.
            KindError: no number.
        """
        try:
            found = self.sequences.get(seq)
        except TypeError:  # a list, say, which is no key
            found = None
        if found is None and not isinstance(seq, int):
            raise KindError(f"seq must be a number that allocate, fork or share_prefix gave, got {seq!r}")
        if found is None:
            raise NoSuchSequence(f"seq {seq!r} is no sequence of this cache: it was freed, or never allocated")
        return found

    def allocate(self, tokens: int) -> SeqId:
        """A new sequence without tokens, and pages in reserve for ``tokens``."""
        needed = self._pages(tokens)
        self._check_slot()
        self._check_free(needed)
        seq, sequence = self._add()
        self._take(sequence, needed)
        return seq

    def share(self, seq: SeqId, length: int) -> SeqId:
        """A new sequence that begins with the first ``length`` tokens of ``seq``, and shares their pages."""
        own = self.of(seq)
        self._check_slot()
        new, sequence = self._add()
        for number, page in enumerate(own.pages[: self._pages(length)]):
            self.holders[page] += 1
            self._set(sequence, number, page)
        self._resize(sequence, length)
        return new

    def reserve(self, seq: SeqId, tokens: int) -> None:
        """Pages for ``tokens`` more than the sequence has."""
        own = self.of(seq)
        needed = self._pages(own.length + tokens)
        self._check_free(max(needed - len(own.pages), 0))
        self._take(own, needed)

    def grow(self, seqs: Several[SeqId], tokens: int) -> None:
        """``tokens`` more of each sequence, which must differ; pages that they are written to belong to it alone."""
        grown = [self.of(seq) for seq in seqs]
        if len(set(seqs)) != len(seqs):
            twice = next(seq for seq, count in Counter(seqs).items() if count > 1)
            raise InputError(f"seqs must be different sequences, got {twice} twice")
        if not tokens:
            return
        needed, held = 0, Counter[int]()
        for own in grown:
            needed += max(self._pages(own.length + tokens) - len(own.pages), 0)
            last = self._last_in_part(own)
            if last is not None and self.holders[last] - held[last] > 1:
                needed += 1
                held[last] += 1
        self._check_free(needed)
        for own in grown:
            last = self._last_in_part(own)
            if last is not None and self.holders[last] > 1:
                self.holders[last] -= 1
                page = self._pop()
                self.copies.append((last, page))
                self._set(own, own.length // self.page_size, page)
            self._take(own, self._pages(own.length + tokens))
            self._resize(own, own.length + tokens)

    def trim(self, seq: SeqId, length: int) -> None:
        """The first ``length`` tokens stay, and the pages that hold them."""
        own = self.of(seq)
        self._release(own, self._pages(length))
        self._resize(own, length)

    def remove(self, seq: SeqId) -> None:
        """The sequence is no more."""
        own = self.of(seq)
        self._release(own, 0)
        self._resize(own, 0)
        self._slots.append(own.slot)
        del self.sequences[seq]

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def _last_in_part(self, own: Sequence) -> int | None:
        """The page that holds the last token, if there is room behind it."""
        return own.pages[own.length // self.page_size] if own.length % self.page_size else None

    def _check_slot(self) -> None:
        if not self._slots:
            raise OutOfSequences(f"max_seqs={self._max_seqs} sequences are live: free one first")

    def _check_free(self, needed: int) -> None:
        if needed > len(self.free):
            raise OutOfPages(needed, len(self.free))

    def _add(self) -> tuple[SeqId, Sequence]:
        seq = SeqId(self._next)
        self._next += 1
        self.sequences[seq] = Sequence(self._slots.pop())
        return seq, self.sequences[seq]

    def _pop(self) -> int:
        page = self.free.pop()
        self.holders[page] = 1
        return page

    def _take(self, own: Sequence, pages: int) -> None:
        while len(own.pages) < pages:
            self._set(own, len(own.pages), self._pop())

    def _release(self, own: Sequence, kept: int) -> None:
        while len(own.pages) > kept:
            page = own.pages.pop()
            self.holders[page] -= 1
            if not self.holders[page]:
                self.free.append(page)

    def _set(self, own: Sequence, number: int, page: int) -> None:
        own.pages[number : number + 1] = [page]
        self.changed[own.slot * self.width + number] = page

    def _resize(self, own: Sequence, length: int) -> None:
        own.length = length
        self.resized[own.slot] = length
