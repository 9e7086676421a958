"""What made a function: the code that it runs, and what its factory left in it."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from torch.nn.attention import flex_attention as theirs

Function = Callable[..., Any]


def code_in(factory: Function, name: str) -> CodeType:
    """The code of the function ``name`` that ``factory`` defines and returns.

    Raises:
        LookupError: it defines none of that name.

    Example:
        >>> def adder(n):
        ...     def add(x):
        ...         return x + n
        ...     return add
        >>> adder(1).__code__ is code_in(adder, "add")
        True
    """
    for constant in factory.__code__.co_consts:
        if isinstance(constant, CodeType) and constant.co_name == name:
            return constant
    raise LookupError(f"{factory.__qualname__} defines no function {name!r}")


def code_of(function: object) -> CodeType | None:
    """The code that a function runs; ``None`` of an object that is no Python function.

    Example:
        >>> code_of(code_of).co_name, code_of(len)
        ('code_of', None)
    """
    return getattr(function, "__code__", None)


def values_in(function: Function) -> dict[str, Any]:
    """The variables of its factory that a function reads, by name.

    Example:
        >>> def adder(n):
        ...     return lambda x: x + n
        >>> values_in(adder(3))
        {'n': 3}
    """
    cells = function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}


AND = code_in(theirs.and_masks, "and_mask")
OR = code_in(theirs.or_masks, "or_mask")


def parts_of(function: Function) -> tuple[Function, ...]:
    """The masks that PyTorch's ``and_masks`` or ``or_masks`` put together; none of any other function.

    Example:
        >>> len(parts_of(theirs.and_masks(theirs.noop_mask, theirs.noop_mask))), parts_of(theirs.noop_mask)
        (2, ())
    """
    return values_in(function)["mask_mods"] if code_of(function) in (AND, OR) else ()
