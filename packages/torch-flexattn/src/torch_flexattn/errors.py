"""What goes wrong, by kind. Each is also the built-in exception that fits, so callers may catch either."""

from __future__ import annotations

from typing import Self


class FlexAttentionError(Exception):
    """Anything that this package refuses.

    Attributes:
        place: of errors of one position of a call, its batch entry, head, query and key.
    """

    place: tuple[int, int, int, int] | None = None

    def at(self, place: tuple[int, int, int, int]) -> Self:
        """The error, of that position."""
        self.place = place
        return self


class InputError(FlexAttentionError, ValueError):
    """Shapes, sizes or values that do not fit together."""


class KindError(FlexAttentionError, TypeError):
    """Something of the wrong type: a dtype, a number of arguments, no function."""


class DtypeError(KindError, InputError):
    """Tensors of types that do not go together."""


class OutOfRangeError(FlexAttentionError, IndexError):
    """A captured tensor that is read behind its end, or an index outside a block mask."""


class NoSuchSequence(FlexAttentionError, KeyError):
    """A number that is no sequence of a paged cache."""

    __str__ = Exception.__str__


class DataFormatError(FlexAttentionError, ValueError):
    """A file of data with a line that is not what the format says."""


class UnsupportedModError(FlexAttentionError, NotImplementedError):
    """A mask or score modification that does what kernels cannot."""


class UnsupportedError(FlexAttentionError, NotImplementedError):
    """A combination of options that no kernel serves."""


class OutOfPages(FlexAttentionError, RuntimeError):
    """A paged cache has too few free pages; nothing was changed.

    Attributes:
        needed: pages that were asked for.
        free: pages that there are.
    """

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(
            f"{needed} pages are needed and {free} are free: free or trim sequences, or make a cache of more num_pages"
        )
        self.needed = needed
        self.free = free

    def __reduce__(self) -> tuple[type[OutOfPages], tuple[int, int]]:
        return OutOfPages, (self.needed, self.free)


class OutOfSequences(FlexAttentionError, RuntimeError):
    """A paged cache has as many sequences as it can have."""
