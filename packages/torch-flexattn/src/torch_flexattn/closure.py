"""What a Python function brings along: the tensors and numbers that it reads from outside, and how to replace them.

A mod is a closure. Numbers in its cells, defaults, globals and bound arguments become places of the program that are
filled at every call, so a new length or window size needs no new program; tensors become captures. Everything else that
the code can reach (strings, flags, attributes of objects, classes and modules, dictionaries) is part of what the
function *is*: there a changed value makes another function.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from .attribute_reads import attributes_read, followed
from .program import Program
from .unwatched import is_unwatched, refuse_unwatched

_HERE = str(Path(__file__).parent)
MOST_OPEN = 64
"""Numbers of a list that become places; those of a longer one are part of the function."""
FOREIGN = {"torch", "numpy", "builtins", *sys.stdlib_module_names} - {"__main__"}
"""Modules whose functions are what they are; only what their cells hold is looked at, as of PyTorch's ``and_masks``."""
CLOSED = FOREIGN | {__name__.partition(".")[0]}
"""Those and this package, whose globals hold what is remembered of mods: whoever walks there meets himself, larger each
time."""
READS_A_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
"""Layers that are read by number or name, of which no code tells."""
DYNAMIC = {"getattr", "attrgetter", "vars", "__dict__", "children", "modules", "get_submodule"}
"""Names of what reads attributes that the code does not name."""
Visit = Callable[[Any, frozenset[str]], None]
PLAIN = (str, bool, type(None), bytes, complex, range, slice, type(Ellipsis))


@dataclass
class Closure:
    """What :func:`read` found.

    Attributes:
        identity: hashable: code, types and whatever is neither number nor tensor. Equal identities trace alike.
        numbers: int and float values, in the order of the walk.
        tensors: captured tensors, each once.
        held: objects that ``identity`` names by address, to be kept alive with it.
    """

    identity: tuple[Any, ...] = ()
    numbers: list[int | float] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    held: list[Any] = field(default_factory=list)


def read(function: Callable[..., Any]) -> Closure:
    """What ``function`` reads from outside.

    Example:
        >>> import torch
        >>> window, table = 4, torch.zeros(8)
        >>> found = read(lambda b, h, q, kv: (q - kv < window) & (table[q] > 0))
        >>> found.numbers, len(found.tensors)
        ([4], 1)
    """
    names: frozenset[str] = frozenset()
    while True:
        walk = _Walk(function, names)
        walk.open(function)
        if walk.named <= names or not walk.has_missed(names | walk.named):
            walk.found.identity = tuple(walk.identity)
            return walk.found
        names |= walk.named


class _Walk:
    """Visits what a function reaches, once each: ``open`` where numbers can be replaced, ``fix`` where they cannot.

    ``names``: attributes that the code which led to a value may read. What cannot be watched is refused, but not where
    it was reached by how an object is called that a function only holds: that may be the layer that makes the function.

    Args:
        mod: where it begins.
        names: attributes that any code may read which is surely called.

    Attributes:
        named: those, found on the way: another walk may be needed.
    """

    def __init__(self, mod: Any, names: frozenset[str]) -> None:
        self._mod, self._is_strict, self._everywhere = mod, True, names
        self.named: set[str] = set()
        self._skipped: set[str] = set()
        self._asked: list[tuple[Any, frozenset[str]]] = []
        self.found = Closure()
        self.identity: list[Any] = []
        self._seen: dict[tuple[str, int], int] = {}

    def has_missed(self, names: frozenset[str]) -> bool:
        """Whether something was left out that ``names`` lead to."""
        if self._skipped and (self._skipped & names or DYNAMIC & names):
            return True
        return any(hasattr(value, name) for value, known in self._asked for name in names - known)

    def open(self, value: Any, names: frozenset[str] = frozenset()) -> None:
        kind = type(value)
        if kind is int or kind is float:
            self.found.numbers.append(value)
            self.identity.append(kind)
        elif isinstance(value, Tensor):
            self._tensor(value)
        elif kind is types.FunctionType:
            if not self._is_known(value, "open"):
                self._function(value, self.open)
        elif kind is functools.partial:
            self.identity += (kind, len(value.args), tuple(value.keywords))
            for part in (value.func, *value.args, *value.keywords.values()):
                self.open(part, names)
        elif kind is types.MethodType:
            self.identity.append(kind)
            self.open(value.__func__)
            self._read(value.__self__, value.__func__, None, self.fix, names | _names_of(value.__func__))
        elif (kind is tuple or kind is list) and len(value) <= MOST_OPEN:
            self.identity.append((kind, len(value)))
            for part in value:
                self.open(part, names)
        else:
            self.fix(value, names)

    def fix(self, value: Any, names: frozenset[str] = frozenset()) -> None:
        kind = type(value)
        if kind is int or kind is float:
            self.identity.append((kind, repr(value)))
        elif isinstance(value, Tensor):
            self._tensor(value)
        elif kind in PLAIN:
            self.identity.append((kind, repr(value) if kind is complex else value))
        elif isinstance(value, Program):
            self.identity.append(value.key)
        elif kind.__module__ == "numpy" and hasattr(value, "tobytes"):
            self.identity.append((kind, str(value.dtype), value.shape, value.tobytes()))
        elif not self._is_known(value):
            self._compound(value, kind, names)

    def _compound(self, value: Any, kind: type, names: frozenset[str]) -> None:
        if kind is types.FunctionType:
            self._function(value, self.fix)
        elif isinstance(value, tuple | list):
            self.identity.append((kind, len(value)))
            for part in value:
                self.fix(part, names)
        elif isinstance(value, dict):
            self.identity.append((kind, tuple(map(repr, value))))
            for part in value.values():
                self.fix(part, names)
        elif isinstance(value, set | frozenset):
            self.identity.append((kind, tuple(sorted(map(repr, value)))))
        elif kind is functools.partial or kind is types.MethodType:
            self.identity.append(kind)
            whole = kind is functools.partial
            for part in (value.func, *value.args, value.keywords) if whole else (value.__func__, value.__self__):
                self.fix(part, names)
        else:
            if self._is_strict:
                refuse_unwatched(value, names)
            self.identity.append(id(value))
            self.found.held.append(value)
            if isinstance(value, types.ModuleType | type):
                if _root(value) not in CLOSED:
                    self._named(value, names)
            elif _root(kind) != "torch" or isinstance(value, nn.Module):
                self._object(value, kind, names)

    def _function(self, function: types.FunctionType, visit: Visit) -> None:
        self.identity.append(function.__code__)
        if _is_closed(function):
            return
        names = _names(function.__code__)
        if self._is_strict:
            self.named |= names
        for variable, part in _parts(function):
            self._read(part, function, variable, visit, names)
        for name in _global_names(function):
            self.identity.append(name)
            self._read(function.__globals__[name], function, name, visit, names)

    def _read(self, value: Any, function: Any, variable: str | None, visit: Visit, names: frozenset[str]) -> None:
        """What a variable of a function stands for, its first argument by default: of layers what it reads of them."""
        code = getattr(function, "__code__", None)
        read = None if code is None else attributes_read(value, code, variable)
        if read is None:
            visit(value, names)
        elif not self._is_known(value, " ".join(sorted(read))):
            kind = type(value)
            self.identity.append(id(value))
            self.found.held.append(value)
            for method in followed(kind, read):
                names |= _names(method.__code__)
                self.fix(method)
            self._named(kind, read)
            for name, attribute in _attributes(value):
                if name in read:
                    self.identity.append(name)
                    self.fix(attribute, names)

    def _named(self, value: Any, names: frozenset[str]) -> None:
        """Attributes of a module or class that the code names."""
        names |= self._everywhere - {"__dict__"}
        self._asked.append((value, names | {"__dict__"}))
        for name in sorted(names):
            attribute = getattr(value, name, None)
            if isinstance(attribute, types.MethodType) and attribute.__self__ is value:  # of the class
                attribute = attribute.__func__
            if (attribute is not None and not callable(attribute)) or isinstance(attribute, types.FunctionType):
                self.identity.append(name)
                self.fix(attribute, names)

    def _object(self, value: Any, kind: type, names: frozenset[str]) -> None:
        """Attributes of an object, the functions it is called by, and what those name of its class."""
        was, self._is_strict = self._is_strict, self._is_strict and value is self._mod
        for function in (getattr(kind, name, None) for name in ("__call__", "forward")):
            if isinstance(function, types.FunctionType) and _root(function) not in FOREIGN:
                names |= _names(function.__code__)
                self.fix(function)
        self._is_strict = was
        if _root(kind) not in CLOSED:
            self._named(kind, names - {"__dict__"})  # that of the object is looked at below
        names |= self._everywhere
        whole = isinstance(value, CONTAINERS) or not DYNAMIC.isdisjoint(self._everywhere)
        for name, attribute in _attributes(value):
            if (whole and not is_unwatched(attribute)) or not _is_object(attribute) or name in names:
                self.identity.append(name)
                self.fix(attribute, names)
            else:
                self._skipped.add(name)

    def _tensor(self, value: Tensor) -> None:
        found = [n for n, known in enumerate(self.found.tensors) if known is value]
        number = found[0] if found else len(self.found.tensors)
        if not found:
            self.found.tensors.append(value)
        self.identity.append((number, value.dtype, value.dim(), value.requires_grad))

    def _is_known(self, value: Any, mode: str = "fix") -> bool:
        """Whether a value was met before, as a function that calls itself meets itself."""
        number = self._seen.get((mode, id(value)))
        if number is None:
            self._seen[mode, id(value)] = len(self._seen)
            return False
        self.identity.append(("again", number))
        return True


def _root(value: Any) -> str:
    """Name of the package that a function, class or module is of."""
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    return name.partition(".")[0] if isinstance(name, str) else ""


def _is_of_library(function: types.FunctionType) -> bool:
    """Whether a function is a library's, or in a file of this package: an example in a docstring has its name, too."""
    return _root(function) in FOREIGN or function.__code__.co_filename.startswith(_HERE)


def _is_closed(function: types.FunctionType) -> bool:
    """Whether a function is one of a library's own, that holds nothing of the user's."""
    return _is_of_library(function) and not function.__closure__


def _parts(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Contents of cells and defaults, in a fixed order, with the names of their variables."""
    code = function.__code__
    yield from ((name, _content(cell)) for name, cell in zip(code.co_freevars, function.__closure__ or ()))
    given = function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(given) : code.co_argcount], given)
    yield from (function.__kwdefaults__ or {}).items()


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty: the function is being defined
        return None


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> frozenset[str]:
    """Globals and attributes that the code names, and the functions defined inside it."""
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return frozenset(code.co_names).union(*map(_names, inner))


def _names_of(function: Any) -> frozenset[str]:
    return _names(function.__code__) if isinstance(function, types.FunctionType) else frozenset()


def _global_names(function: types.FunctionType) -> list[str]:
    if _is_of_library(function):
        return []
    return [n for n in _globals(function.__code__) if n in function.__globals__]


@functools.lru_cache(maxsize=4096)
def _globals(code: types.CodeType) -> tuple[str, ...]:
    """Globals that the code names, and the functions defined inside it; not attributes of the same name."""
    inner = (_globals(c) for c in code.co_consts if isinstance(c, types.CodeType))
    found = {i.argval for i in dis.get_instructions(code) if i.opname in READS_A_GLOBAL}
    return tuple(sorted(found.union(*inner)))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, by name; of a module of PyTorch without its machinery."""
    held = dict(getattr(value, "__dict__", {}))
    held |= {n: getattr(value, n) for c in type(value).__mro__ for n in _slots(c) if hasattr(value, n)}
    if isinstance(value, nn.Module):
        inner = {**value._parameters, **value._buffers, **value._modules}
        held = {n: a for n, a in held.items() if n == "training" or not n.startswith("_")} | inner
    yield from sorted(held.items(), key=lambda item: str(item[0]))


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_object(value: Any) -> bool:
    """Whether a value may lead far away, or may not be read: it is looked at only where the code names it."""
    far = hasattr(value, "__dict__") and not isinstance(value, Tensor | types.FunctionType | functools.partial)
    return far or is_unwatched(value)


def rebuild(function: Callable[..., Any], numbers: Iterator[Any]) -> Callable[..., Any]:
    """The function with other values in the places of its numbers, taken in the order of :func:`read`."""
    return _Rebuilding(numbers).of(function)


class _Rebuilding:
    """Replaces what :meth:`_Walk.open` visits; a function that was met before is the new one again."""

    def __init__(self, numbers: Iterator[Any]) -> None:
        self._numbers = numbers
        self._new: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        kind = type(value)
        if kind is int or kind is float:
            return next(self._numbers)
        if kind is types.FunctionType:
            return self._new[id(value)] if id(value) in self._new else self._function(value)
        if kind is functools.partial:
            inner, *args = (self.of(part) for part in (value.func, *value.args))
            return functools.partial(inner, *args, **{name: self.of(part) for name, part in value.keywords.items()})
        if kind is types.MethodType:
            return types.MethodType(self.of(value.__func__), value.__self__)
        if (kind is tuple or kind is list) and len(value) <= MOST_OPEN:
            return kind([self.of(part) for part in value])
        return value

    def _function(self, old: types.FunctionType) -> types.FunctionType:
        if _is_closed(old):
            return old
        cells = [types.CellType() for _ in old.__closure__ or ()]
        new = types.FunctionType(old.__code__, dict(old.__globals__), old.__name__, None, tuple(cells) or None)
        new.__module__, new.__qualname__ = old.__module__, old.__qualname__
        self._new[id(old)] = new
        for cell, was in zip(cells, old.__closure__ or ()):
            cell.cell_contents = self.of(_content(was))
        new.__defaults__ = tuple(self.of(part) for part in old.__defaults__ or ()) or None
        new.__kwdefaults__ = {name: self.of(part) for name, part in (old.__kwdefaults__ or {}).items()} or None
        for name in _global_names(old):
            value = old.__globals__[name]
            if not isinstance(value, types.ModuleType | type):  # those are what they are
                new.__globals__[name] = self.of(value)
        return new
