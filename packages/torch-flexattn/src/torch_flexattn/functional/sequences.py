"""Where packed sequences lie: one after the other, or apart, each from the beginning of a block on."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError, KindError
from ..fp8 import FP8

APART = 128
"""Sequences that are set apart begin at multiples of this: tiles of keys and blocks of masks then begin with them."""


class Sequences:
    """Tables of packed sequences.

    Attributes:
        begins: int32 ``[N]``: the first token of each.
        ends: int32 ``[N]``: the token after its last.
        tokens: of all, and of the room between them.
        number: int32 ``[tokens]``: which sequence a token belongs to.
        first: int32 ``[tokens]``: the first token of its sequence.
        places: int64 ``[T]``: where packed tokens are; ``None``: where they were.
    """

    def __init__(self, starts: Tensor, tokens: int, *, apart: bool) -> None:
        starts = starts.to(torch.int32)
        self.begins, self.ends, self.tokens, self.places = starts[:-1], starts[1:], tokens, None
        self.number = self._numbers(starts)
        if apart:
            lengths = self.lengths
            room = (lengths + APART - 1) // APART * APART
            begins = room.cumsum(0, dtype=torch.int32) - room
            moved = (begins - self.begins).index_select(0, self.number)
            self.places = torch.arange(tokens, device=starts.device) + moved
            self.begins, self.ends = begins, begins + lengths
            # As much as any lengths may need: nothing waits for the device.
            self.tokens = (tokens + (APART - 1) * (lengths.shape[0] + 1)) // APART * APART
            self.number = self._numbers(begins)
        self.first = self.begins.index_select(0, self.number)

    @property
    def lengths(self) -> Tensor:
        """int32 ``[N]``: tokens of each."""
        return self.ends - self.begins

    def _numbers(self, starts: Tensor) -> Tensor:
        """Which sequence a token belongs to."""
        last = self.begins.shape[0] - 1
        if torch.compiler.is_compiling():  # of a search in sizes that are open Inductor 2.11 makes no valid code
            marks = torch.zeros(self.tokens + 1, dtype=torch.int32, device=starts.device)
            marks = marks.index_add(0, self.begins.clamp(0, self.tokens), torch.ones_like(self.begins))
            found = marks.cumsum(0, dtype=torch.int32)[:-1] - 1
        else:
            tokens = torch.arange(self.tokens, dtype=torch.int32, device=starts.device)
            found = torch.searchsorted(starts, tokens, right=True, out_int32=True) - 1
        return found.clamp(0, last)

    def laid_out(self, packed: Tensor) -> Tensor:
        """Packed ``[T, H, D]`` as the only entry of a batch, ``[1, H, tokens, D]``."""
        if self.places is not None:
            # 8-bit floats are moved as bytes, of which 0 is their zero: PyTorch copies no such rows by number.
            eight = packed.dtype == FP8
            packed = packed.view(torch.uint8) if eight else packed
            packed = packed.new_zeros(self.tokens, *packed.shape[1:]).index_copy(0, self.places, packed)
            packed = packed.view(FP8) if eight else packed
        return packed.transpose(0, 1).unsqueeze(0)

    def packed(self, found: Tensor) -> Tensor:
        """``[1, H, tokens, …]`` as packed ``[T, H, …]``."""
        found = found.squeeze(0).transpose(0, 1)
        return found if self.places is None else found.index_select(0, self.places)

    def keys_of(self, of_q: Sequences) -> tuple[Tensor, Tensor]:
        """For each query of ``of_q`` the first key that its sequence has here, and the key after its last."""
        begin, end = (x.index_select(0, of_q.number) for x in (self.begins, self.ends))
        if of_q.places is None:
            return begin, end
        tokens = torch.arange(of_q.tokens, dtype=torch.int32, device=end.device)
        return begin, torch.where(tokens < of_q.ends.index_select(0, of_q.number), end, begin)


def sequences(name: str, starts: Tensor | None, tokens: Tensor, *, apart: bool) -> Sequences:
    """The sequences that begin and end at ``starts`` among ``tokens``, ``[T, …]``.

    Raises:
        InputError: another shape or device; on a CPU, numbers that do not go from 0 up to ``T``.
        KindError: no int32 or int64 tensor.
    """
    if not isinstance(starts, Tensor) or starts.dtype not in (torch.int32, torch.int64):
        got = starts.dtype if isinstance(starts, Tensor) else type(starts).__name__
        raise KindError(f"{name} must be an int32 or int64 tensor, got {got}")
    if starts.dim() != 1 or starts.shape[0] == 0:
        raise InputError(f"{name} must have shape [sequences + 1], got {tuple(starts.shape)}")
    if starts.device != tokens.device:
        raise InputError(f"{name} is on {starts.device}, but the tokens are on {tokens.device}")
    if starts.device.type == "cpu" and not torch.compiler.is_compiling():
        wrong = int(starts[0]) != 0 or int(starts[-1]) != tokens.shape[0] or bool((starts.diff() < 0).any())
        if wrong:
            raise InputError(f"{name} must go from 0 up to the {tokens.shape[0]} tokens, got {starts.tolist()}")
    return Sequences(starts, tokens.shape[0], apart=apart)
