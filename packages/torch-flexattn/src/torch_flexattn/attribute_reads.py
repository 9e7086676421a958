"""Which attributes of a layer a function reads, if its code tells: a layer has many, and some change at each call.

A variable that stands for the layer is followed through the byte code. If each of its uses reads an attribute, nothing
else of the layer matters to the function; any other use (a call, an argument, a comparison) leaves that open.
"""

from __future__ import annotations

import dis
import functools
import types

from torch import nn

LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_GLOBAL", "LOAD_NAME")
CHANGES = ("STORE_FAST", "STORE_DEREF", "STORE_GLOBAL", "STORE_NAME", "DELETE_")
READS = ("LOAD_ATTR", "LOAD_METHOD")
UNSEEN = {"super", "__class__", "locals", "vars", "eval", "exec"}
"""Names by which code reaches its variables without loading them."""


def attributes_read(value: object, code: types.CodeType, variable: str | None) -> frozenset[str] | None:
    """Names of the attributes of a layer that matter to a function, its methods and properties included.

    Args:
        value: what the variable stands for.
        code: of the function.
        variable: name of the variable; ``None``: its first argument.

    Returns:
        ``None`` where that cannot be told, also of what is no layer.
    """
    if not isinstance(value, nn.Module):
        return None
    kind = type(value)
    if kind.__getattr__ is not nn.Module.__getattr__ or kind.__getattribute__ is not object.__getattribute__:
        return None
    found: set[str] = set()
    open_names = _read_of(code, _first(code) if variable is None else variable)
    while open_names is not None and open_names - found:
        found |= open_names
        further: frozenset[str] | None = frozenset()
        for name in open_names:
            function = _function_of(kind, name)
            own = _read_of(function.__code__, _first(function.__code__)) if function is not None else frozenset()
            further = None if own is None or further is None else further | own
        open_names = further if further is None or _are_known(kind, further) else None
    return None if open_names is None or not _are_known(kind, frozenset(found)) else frozenset(found)


def followed(kind: type, names: frozenset[str]) -> list[types.FunctionType]:
    """Methods of a class, and functions of its properties, that ``names`` lead to."""
    found = (_function_of(kind, name) for name in sorted(names))
    return [function for function in found if function is not None]


def _static(kind: type, name: str) -> object:
    return next((vars(c)[name] for c in kind.__mro__ if name in vars(c)), None)


def _function_of(kind: type, name: str) -> types.FunctionType | None:
    """What runs where an attribute is read or called: a method, or the function of a property."""
    attribute = _static(kind, name)
    attribute = attribute.fget if isinstance(attribute, property) else attribute
    return attribute if isinstance(attribute, types.FunctionType) else None


def _are_known(kind: type, names: frozenset[str]) -> bool:
    """Whether all are read as instances read them, or by functions that can be followed."""
    found = [a for a in (_static(kind, name) for name in names) if hasattr(type(a), "__get__")]
    return all(
        isinstance(a, types.FunctionType) or (isinstance(a, property) and isinstance(a.fget, types.FunctionType))
        for a in found
    )


def _first(code: types.CodeType) -> str:
    return code.co_varnames[0] if code.co_argcount else ""


@functools.lru_cache(maxsize=4096)
def _read_of(code: types.CodeType, variable: str) -> frozenset[str] | None:
    """Attributes that the code reads of a variable, in the functions inside it, too; ``None``: it does more with it."""
    if not variable or UNSEEN & {*code.co_names, *code.co_freevars}:
        return None
    found: set[str] = set()
    steps = [i for i in dis.get_instructions(code) if i.opname != "EXTENDED_ARG"]
    for step, following in zip(steps, [*steps[1:], None]):
        named = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if variable not in named:
            continue
        if step.opname.startswith(CHANGES) or (step.opname.startswith(LOADS) and variable in named[:-1]):
            return None
        if step.opname.startswith(LOADS):
            if following is None or following.opname not in READS:
                return None
            found.add(following.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType) and variable in inner.co_freevars:
            own = _read_of(inner, variable)
            if own is None:
                return None
            found |= own
    return frozenset(found)
