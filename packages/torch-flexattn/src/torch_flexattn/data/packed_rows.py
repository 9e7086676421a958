"""Packed documents as rows of tokens, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .packing import Piece, pack_documents


@dataclass(frozen=True, eq=False)
class PackedRow:
    """Documents one after the other in one row: what a training step gets.

    Attributes:
        tokens: int64 ``[T]``.
        cu_seqlens: int32 ``[N + 1]``: where documents begin and end: 0, …, ``T``. For ``masks.document`` and
            ``flex_attention_varlen``.

    Example:
        >>> import torch
        >>> PackedRow(torch.tensor([5, 6, 7]), torch.tensor([0, 2, 3], dtype=torch.int32)).positions
        tensor([0, 1, 0])
    """

    tokens: Tensor
    cu_seqlens: Tensor

    @property
    def positions(self) -> Tensor:
        """Of each token in its document, int64 ``[T]``."""
        starts, lengths = self.cu_seqlens[:-1].long(), self.cu_seqlens.diff()
        place = torch.arange(self.tokens.shape[0], device=self.tokens.device)
        return place - starts.repeat_interleave(lengths, output_size=self.tokens.shape[0])

    def to(self, device: torch.device | str) -> PackedRow:
        """On another device."""
        return PackedRow(self.tokens.to(device), self.cu_seqlens.to(device))


class PackedRows:
    """A loader of packed rows. Each epoch may have another order, each rank of a distributed run its own rows.

    Args:
        documents: int64 ``[n]`` each.
        row_length: tokens of a row.
        how: as of :func:`pack_documents`.
        seed: of the order; the epoch is added to it. ``None``: the documents stay in order.
        place: says epoch, rank and number of ranks, when rows are asked for; default: all rows, of epoch 0. Rank ``r``
            gets every ``world``-th row; those that are too few for all ranks are left out.

    Raises:
        InputError: as :func:`pack_documents`, when rows are asked for.

    Example:
        >>> import torch
        >>> [row.tokens.tolist() for row in PackedRows([torch.arange(3), torch.arange(2)], 4)]
        [[0, 1, 2, 0], [1]]
    """

    def __init__(
        self,
        documents: Sequence[Tensor],
        row_length: int,
        *,
        how: Literal["cut", "whole"] = "cut",
        seed: int | None = None,
        place: Callable[[], tuple[int, int, int]] | None = None,
    ) -> None:
        self.documents, self.row_length, self.seed, self.place = documents, row_length, seed, place
        self.how: Literal["cut", "whole"] = how
        self._epoch: int | None = None
        self._rows: list[list[Piece]] = []

    def __iter__(self) -> Iterator[PackedRow]:
        for pieces in self._own():
            parts = [self.documents[piece.document][piece.start : piece.stop] for piece in pieces]
            lengths = torch.tensor([0, *(part.shape[0] for part in parts)])
            yield PackedRow(torch.cat(parts), lengths.cumsum(0).to(torch.int32))

    def __len__(self) -> int:
        return len(self._own())

    def _own(self) -> list[list[Piece]]:
        epoch, rank, world = (0, 0, 1) if self.place is None else self.place()
        if self._epoch != epoch:
            self._epoch, self._rows = epoch, self._packed(epoch)
        return self._rows[rank : len(self._rows) // world * world : world]

    def _packed(self, epoch: int) -> list[list[Piece]]:
        lengths = [document.shape[0] for document in self.documents]
        if self.seed is None:
            return pack_documents(lengths, self.row_length, how=self.how)
        random = torch.Generator().manual_seed(self.seed + epoch)
        order = torch.randperm(len(lengths), generator=random).tolist()
        rows = pack_documents(lengths, self.row_length, how=self.how, order=order)
        if self.how == "whole":  # packing has put the longest first
            rows = [rows[n] for n in torch.randperm(len(rows), generator=random).tolist()]
        return rows
