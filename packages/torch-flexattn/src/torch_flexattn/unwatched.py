"""What a mod may not read, because nothing tells when it changes: it would be read once, when the mod is recorded."""

from __future__ import annotations

import random
import types
from array import array
from collections import deque
from typing import Any

from .errors import UnsupportedModError

VIEWS = (type({}.keys()), type({}.values()), type({}.items()))
CONTAINERS = (deque, bytearray, array, memoryview, types.MappingProxyType, *VIEWS)
DRAWING = ("random", "secrets", "numpy.random")
"""Modules that draw."""
ENVIRONMENT = ("environ", "environb", "getenv")


def is_unwatched(value: Any) -> bool:
    """Whether changes of a value, or its draws, go unnoticed.

    Example:
        >>> is_unwatched(bytearray(3)), is_unwatched((1, 2))
        (True, False)
    """
    return (
        isinstance(value, CONTAINERS)
        or _draws(value)
        or (hasattr(type(value), "__next__") and not hasattr(value, "__dict__"))  # an iterator
    )


def refuse_unwatched(value: Any, names: frozenset[str]) -> None:
    """Raise for a value that a mod reads and nobody can watch; the message goes on from the name of the mod.

    Args:
        value: what was reached.
        names: attributes that the code which reached it names.

    Raises:
        UnsupportedModError: it is one of those.
    """
    if isinstance(value, types.ModuleType):
        name = value.__name__
        if name in DRAWING or (name == "numpy" and "random" in names):
            raise _of_draws(f"the module {name if name in DRAWING else 'numpy.random'}")
        read = [e for e in ENVIRONMENT if e in names] if name == "os" else []
        if read:
            raise UnsupportedModError(
                f"reads os.{read[0]}, whose changes go unnoticed: read it outside, and use the value"
            )
    elif _draws(value):
        raise _of_draws(f"a generator of random numbers ({getattr(value, '__qualname__', type(value).__name__)})")
    elif is_unwatched(value):
        raise UnsupportedModError(
            f"reads a container of type {type(value).__name__}, whose contents may change unnoticed: make it a "
            "tuple, a list or a tensor outside, and use that"
        )


def _of_draws(what: str) -> UnsupportedModError:
    return UnsupportedModError(
        f"reads {what}, but is recorded once, so its draws would be the same at every call: draw outside into a "
        "tensor, and capture that (for dropout: dropout_p)"
    )


def _draws(value: Any) -> bool:
    """Whether it is a generator of random numbers, or a method of one."""
    owner = getattr(value, "__self__", value) if isinstance(value, types.BuiltinMethodType) else value
    return isinstance(owner, random.Random) or type(owner).__module__.startswith("numpy.random")
