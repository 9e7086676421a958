"""A request as a batcher knows it: lengths, and names of the blocks of its prompt."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ..errors import InputError, KindError


@dataclass
class Request:
    """A request.

    Attributes:
        number: in order of arrival.
        prompt: its tokens.
        most: prompt and output together, at most.
        blocks: names of the full blocks of the prompt.
        known: prompt and output so far.
        cached: while it runs, those whose keys and values are in the cache.
        filled: while it runs, as many as were known when it got its pages: from here on it decodes.
    """

    number: int
    prompt: int
    most: int
    blocks: tuple[Hashable, ...]
    known: int
    cached: int = 0
    filled: int = 0


def full_blocks(blocks: Sequence[Hashable], prompt: int, size: int | None) -> tuple[Hashable, ...]:
    """Those of ``size`` tokens that a prompt fills.

    Raises:
        InputError: blocks without a size, or more of them than the prompt has.
        KindError: one that is not hashable.
    """
    if size is None:
        if len(blocks):
            raise InputError(f"blocks need a batcher with prefix_block, got {len(blocks)} of them")
        return ()
    if len(blocks) > -(-prompt // size):
        raise InputError(f"blocks must be at most {-(-prompt // size)} of {size} tokens, got {len(blocks)}")
    for number, block in enumerate(blocks):
        try:
            hash(block)
        except TypeError:
            raise KindError(f"blocks[{number}] must be hashable, got {block!r}") from None
    return tuple(blocks[: prompt // size])
