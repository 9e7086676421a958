"""Which sequences hold which blocks of prompts, and which are kept for the blocks alone.

A block is a fixed number of tokens of a prompt; its name stands for these tokens and for all before them, as in a hash
chain. So whoever holds a block holds every block before it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from .allocator import SeqId


class Prefixes:
    """An index from blocks to sequences that hold them, and a list of finished sequences, least used first.

    Args:
        block: tokens of a block.
    """

    def __init__(self, block: int) -> None:
        self.block = block
        self._holders: dict[Hashable, dict[SeqId, None]] = {}
        self._blocks: dict[SeqId, list[Hashable]] = {}
        self._kept: dict[SeqId, None] = {}

    @property
    def kept(self) -> int:
        """Finished sequences that are kept."""
        return len(self._kept)

    def longest(self, blocks: Sequence[Hashable], most: int) -> tuple[SeqId | None, int]:
        """A sequence that holds as many of the first blocks as any, and how many tokens these are: ``most`` at most."""
        holder: SeqId | None = None
        count = 0
        for block in blocks[: most // self.block]:
            if not self._holders.get(block):
                break
            holder, count = next(iter(self._holders[block])), count + 1
        if holder is not None and holder in self._kept:
            self._kept[holder] = self._kept.pop(holder)  # to the end: used last
        return holder, count * self.block

    def add(self, seq: SeqId, blocks: Sequence[Hashable], tokens: int) -> None:
        """A sequence of these blocks now holds its first ``tokens``."""
        own = self._blocks.setdefault(seq, [])
        for block in blocks[len(own) : tokens // self.block]:
            self._holders.setdefault(block, {})[seq] = None
            own.append(block)

    def keep(self, seq: SeqId) -> int:
        """Keep a finished sequence. Returns the tokens of its blocks; 0, and it is forgotten, where it adds nothing."""
        own = self._blocks.get(seq, [])
        if not own or any(other in self._kept for other in self._holders[own[-1]]):
            self.forget(seq)
            return 0
        self._kept[seq] = None
        return len(own) * self.block

    def forget(self, seq: SeqId) -> None:
        """The sequence is no more."""
        for block in self._blocks.pop(seq, []):
            del self._holders[block][seq]
            if not self._holders[block]:
                del self._holders[block]
        self._kept.pop(seq, None)

    def evict(self) -> SeqId | None:
        """Forget the kept sequence that was not used for longest."""
        seq = next(iter(self._kept), None)
        if seq is not None:
            self.forget(seq)
        return seq
