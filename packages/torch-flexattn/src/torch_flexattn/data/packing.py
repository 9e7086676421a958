"""Documents of any length into rows of one length."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Literal, NamedTuple

from ..factory_arguments import check_choice, check_count

HOW = ("cut", "whole")


class Piece(NamedTuple):
    """A part of a document: tokens ``start`` to before ``stop``.

    Example:
        >>> Piece(0, 3, 7).stop
        7
    """

    document: int
    start: int
    stop: int


def pack_documents(
    lengths: Sequence[int], row_length: int, *, how: Literal["cut", "whole"] = "cut", order: Sequence[int] | None = None
) -> list[list[Piece]]:
    """Which parts of which documents stand in each row, one after the other.

    Args:
        lengths: tokens of each document.
        row_length: tokens of a row.
        how: ``"cut"``: rows are full, but for the last, and cut documents at their ends; ``"whole"``: only documents
            longer than a row are cut, each piece goes to the row where it leaves least room, rows may be shorter.
        order: of the documents; default: as they are.

    Raises:
        InputError: a row without tokens, a negative length, another ``how``.
        KindError: no integers.

    Example:
        >>> pack_documents([5, 2], 4)
        [[Piece(document=0, start=0, stop=4)], [Piece(document=0, start=4, stop=5), Piece(document=1, start=0, stop=2)]]

    Reference:
        Ding et al. 2024 (Fewer truncations improve language modeling), section 3, for ``"whole"``.
    """
    check_count("row_length", row_length, 1)
    check_choice("how", how, HOW)
    for number, length in enumerate(lengths):
        check_count(f"lengths[{number}]", length)
    documents = range(len(lengths)) if order is None else order
    if how == "cut":
        return _cut(lengths, row_length, documents)
    pieces = [
        Piece(d, start, min(start + row_length, lengths[d]))
        for d in documents
        for start in range(0, lengths[d], row_length)
    ]
    return _best_fit(pieces, row_length)


def _cut(lengths: Sequence[int], row_length: int, documents: Sequence[int]) -> list[list[Piece]]:
    rows: list[list[Piece]] = []
    room = 0
    for d in documents:
        start = 0
        while start < lengths[d]:
            if room == 0:
                rows.append([])
                room = row_length
            stop = min(start + room, lengths[d])
            rows[-1].append(Piece(d, start, stop))
            room -= stop - start
            start = stop
    return rows


def _best_fit(pieces: list[Piece], row_length: int) -> list[list[Piece]]:
    """Longest first, each into the row with the least room that is enough."""
    with_room: dict[int, list[int]] = {}
    rooms: list[int] = []  # those that some row has, ascending
    rows: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda p: p.start - p.stop):
        length = piece.stop - piece.start
        room = next((r for r in rooms if r >= length), None)
        if room is None:
            rows.append([])
            room, row = row_length, len(rows) - 1
        else:
            row = heapq.heappop(with_room[room])
            if not with_room[room]:
                del with_room[room]
                rooms.remove(room)
        rows[row].append(piece)
        left = room - length
        if left:
            if left not in with_room:
                with_room[left] = []
                rooms.append(left)
                rooms.sort()
            heapq.heappush(with_room[left], row)
    return rows
