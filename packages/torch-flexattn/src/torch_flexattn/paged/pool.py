"""What a paged cache has on the device: keys and values in pages, the table of pages, the lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..fp8 import as_bits
from ..ops.paged_append import paged_append
from .allocator import Allocator, SeqId

KEPT = 64
"""Batches of sequences whose slots stay on the device."""


class Pool:
    """The tensors of a cache; nothing here waits for the device.

    Args:
        pages: ``(num_pages, page_size, num_kv_heads)``.
        widths: features of keys and of values.
        slots: sequences that may live.
        width: pages of a sequence, at most.
        dtype: of keys and values.
        device: of everything.
        descales: of 8-bit keys and values: float32 ``[2, num_kv_heads]``; what is stored is a number over its head's.

    Attributes:
        keys: ``[num_pages, page_size, num_kv_heads, E]``.
        values: ``[num_pages, page_size, num_kv_heads, Ev]``.
        lengths: int32 ``[slots]``: tokens in each slot.
        table: int32 ``[slots, width]``: the pages of a slot, in order.
    """

    def __init__(
        self,
        pages: tuple[int, int, int],
        widths: tuple[int, int],
        slots: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device | str | None,
        descales: Tensor | None = None,
    ) -> None:
        with torch.inference_mode(False):
            self.keys, self.values = (torch.zeros(*pages, own, dtype=dtype, device=device) for own in widths)
            self._state = torch.zeros(slots * (width + 1), dtype=torch.int32, device=device)
        self.device = self._state.device
        self.lengths = self._state[:slots]
        self.table = self._state[slots:].view(slots, width)
        self.descales = descales
        self._of_groups: dict[int, Tensor] = {}
        self._slots: dict[tuple[SeqId, ...], Tensor] = {}
        self._of_graphs: list[Tensor] = []

    @property
    def memory_bytes(self) -> int:
        """Of all tensors."""
        tensors = (self.keys, self.values, self._state, *(() if self.descales is None else (self.descales,)))
        return sum(t.numel() * t.element_size() for t in tensors)

    def descales_of(self, batch: int, heads: int) -> Tensor | None:
        """Factors of products and of values, for query heads: ``[2, batch, heads]``; nothing is launched again."""
        if self.descales is None:
            return None
        group = heads // self.descales.shape[1]
        found = self._of_groups.get(group)
        if found is None:
            with torch.inference_mode(False):
                found = self.descales.repeat_interleave(group, 1).unsqueeze(1)
            if not (self.is_captured() or torch.compiler.is_compiling()):  # else it is the graph's
                self._of_groups[group] = found
        return found.expand(2, batch, heads)

    def is_captured(self) -> bool:
        """Whether what is called goes into a CUDA graph; of a compiler's own graphs nothing is known here."""
        if self.device.type != "cuda" or torch.compiler.is_compiling():
            return False
        return torch.cuda.is_current_stream_capturing()

    def slots_of(self, seqs: Sequence[SeqId], slot: Callable[[SeqId], int]) -> Tensor:
        """Slots of sequences that live, int32 ``[n]``; a slot is its sequence's as long as that lives.

        Raises:
            UnsupportedError: a graph is captured, which cannot hold numbers that are sent now.
        """
        key = tuple(seqs)
        found = self._slots.get(key)
        if torch.compiler.is_compiling() and found is None:  # what is made here is the graph's
            return torch.tensor([slot(seq) for seq in key], dtype=torch.int32, device=self.device)
        if self.is_captured():
            if found is None:
                raise UnsupportedError(
                    f"seqs {list(seqs)} were not used before: call write or attend once, then capture"
                )
            self._of_graphs.append(found)
        elif found is None:
            if len(self._slots) >= KEPT:
                self._slots.pop(next(iter(self._slots)))
            with torch.inference_mode(False):
                found = self._slots[key] = self._sent([slot(seq) for seq in key])
        return found

    def forget(self, seq: SeqId) -> None:
        """The sequence is no more."""
        self._slots = {seqs: slots for seqs, slots in self._slots.items() if seq not in seqs}

    def update(self, pages: Allocator) -> None:
        """Bring the device up to date with what changed on the host: one copy, and those of shared pages."""
        if pages.copies:
            source, target = (self._sent(list(side)) for side in zip(*pages.copies))
            for pool in map(as_bits, (self.keys, self.values)):
                pool.index_copy_(0, target.long(), pool.index_select(0, source))
        places = [*pages.resized, *(self.lengths.shape[0] + place for place in pages.changed)]
        if places:
            place, value = self._sent([places, [*pages.resized.values(), *pages.changed.values()]]).unbind()
            self._state.index_put_((place,), value)
        pages.copies.clear()
        pages.resized.clear()
        pages.changed.clear()

    def write(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """The last tokens of slots: ``k`` ``[n, num_kv_heads, L, E]``, ``v`` ``[n, num_kv_heads, L, Ev]``."""
        paged_append(self.keys, self.values, self.table, self.lengths, slots, k, v, self.descales)

    def _sent(self, numbers: list[int] | list[list[int]]) -> Tensor:
        """Numbers on the device; the host does not wait."""
        pinned = self.device.type == "cuda"
        return torch.tensor(numbers, dtype=torch.int32, device="cpu", pin_memory=pinned).to(
            self.device, non_blocking=True
        )
