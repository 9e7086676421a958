"""Pages handed out, shared and taken back in any order of calls."""

from __future__ import annotations

import pytest
from torch_flexattn import OutOfPages, OutOfSequences
from torch_flexattn.paged.allocator import Allocator, SeqId

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402


class Contents:
    """Tokens written one by one through an allocator, beside plain lists."""

    def __init__(self, pages: int, max_seqs: int) -> None:
        self.pages = Allocator(pages, 16, max_seqs, pages)
        self.pool = [[-1] * 16 for _ in range(pages)]
        self.plain: dict[SeqId, list[int]] = {}
        self.written = 0

    def settle(self) -> None:
        for source, target in self.pages.copies:
            self.pool[target] = list(self.pool[source])
        self.pages.copies.clear()

    def grow(self, seqs: list[SeqId], count: int) -> None:
        self.pages.grow(seqs, count)
        self.settle()
        for seq in seqs:
            own = self.pages.of(seq)
            for place in range(own.length - count, own.length):
                self.pool[own.pages[place // 16]][place % 16] = self.written
                self.plain[seq].append(self.written)
                self.written += 1

    def check(self) -> None:
        pages = self.pages
        held = [page for own in pages.sequences.values() for page in own.pages]
        assert [held.count(page) for page in range(len(self.pool))] == pages.holders
        assert sorted(pages.free) == [page for page, count in enumerate(pages.holders) if not count]
        assert len({own.slot for own in pages.sequences.values()}) == len(pages.sequences)
        for seq, own in pages.sequences.items():
            read = [self.pool[own.pages[place // 16]][place % 16] for place in range(own.length)]
            assert read == self.plain[seq]
            assert len(own.pages) >= -(-own.length // 16)
            for number, page in enumerate(own.pages):
                assert pages.changed[own.slot * pages.width + number] == page
            assert pages.resized.get(own.slot, 0) == own.length


CALLS = ["allocate", "grow", "grow", "grow", "share", "share", "trim", "reserve", "remove"]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_page_is_lost_or_written_by_two(data: st.DataObject) -> None:
    contents = Contents(pages=data.draw(st.integers(4, 12)), max_seqs=4)
    for _ in range(data.draw(st.integers(10, 30))):
        seqs = list(contents.plain)
        what = data.draw(st.sampled_from(CALLS)) if seqs else "allocate"
        seq = data.draw(st.sampled_from(seqs)) if seqs else SeqId(-1)
        count = data.draw(st.integers(0, 40))
        try:
            if what == "allocate":
                contents.plain[contents.pages.allocate(count)] = []
            elif what == "grow":
                contents.grow(data.draw(st.lists(st.sampled_from(seqs), min_size=1, unique=True)), count)
            elif what == "share":
                length = min(count, len(contents.plain[seq]))
                contents.plain[contents.pages.share(seq, length)] = contents.plain[seq][:length]
            elif what == "trim":
                length = min(count, len(contents.plain[seq]))
                contents.pages.trim(seq, length)
                del contents.plain[seq][length:]
            elif what == "reserve":
                contents.pages.reserve(seq, count)
            else:
                contents.pages.remove(seq)
                del contents.plain[seq]
        except (OutOfPages, OutOfSequences):
            pass
        contents.check()
