"""From a Python function to a :class:`Program`: recorded once, found again whenever an equal function comes.

The function runs on numbers that have no value (see ``recorded_graph``). Numbers that it brings along stay open too,
unless Python needs one (an ``if``, a shape, a loop): that one is then written into the program, and another value is
another program.
"""

from __future__ import annotations

import functools
import inspect
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, fx

from .closure import Closure, read, rebuild
from .errors import FlexAttentionError, KindError, UnsupportedModError
from .lowering import NEEDS_VALUE, Lowering
from .program import Program
from .recorded_graph import GraphOfCalls, recorded
from .recorder import Recorder, user_line
from .stats import COUNTS
from .unseen import unseen
from .unwrapped import unwrapped

Kind = Literal["mask", "score"]
ARGUMENTS: dict[Kind, tuple[str, ...]] = {"mask": ("b", "h", "q", "kv"), "score": ("score", "b", "h", "q", "kv")}
WRITTEN = {"mask": "mask_mod(b, h, q_idx, kv_idx)", "score": "score_mod(score, b, h, q_idx, kv_idx)"}
KEPT = 4096
"""Functions that are remembered."""


@dataclass(frozen=True)
class Traced:
    """A function as a program, with what it needs at a call.

    Attributes:
        program: what it computes.
        captures: the captured tensors, in the program's order.
        scalars: values of the program's scalars.
    """

    program: Program
    captures: tuple[Tensor, ...]
    scalars: tuple[int | float, ...]


@dataclass(frozen=True)
class _Recipe:
    """A program and where, among what a function brings along, its captures and scalars are."""

    program: Program
    captures: tuple[int, ...]
    scalars: tuple[int, ...]
    held: tuple[Any, ...]


_recipes: dict[Any, _Recipe] = {}
_fixed: dict[Any, tuple[int, ...]] = {}
_sized: set[Any] = set()
"""Functions that read the size of a captured tensor, which is then written into the program."""
_lock = threading.RLock()


def trace(function: Callable[..., Any], kind: Kind) -> Traced:
    """The program of a mod.

    Args:
        function: ``mask_mod(b, h, q_idx, kv_idx)`` or ``score_mod(score, b, h, q_idx, kv_idx)``.
        kind: which of the two.

    Raises:
        TypeError: it is no function of so many arguments, or does not return one bool (a float, of a score).
        UnsupportedModError: it does what a kernel cannot.
    """
    try:
        closure = read(function)
    except UnsupportedModError as error:
        raise UnsupportedModError(f"{_named(function)} {error}") from None
    recipe = _recipes.get(_key(kind, closure)) or unseen(_new_recipe, function, kind, closure)
    captures = tuple(closure.tensors[n] for n in recipe.captures)
    return Traced(recipe.program, captures, tuple(closure.numbers[n] for n in recipe.scalars))


def _new_recipe(function: Callable[..., Any], kind: Kind, closure: Closure) -> _Recipe:
    """Recorded by one thread at a time."""
    with _lock:
        return _recipes.get(_key(kind, closure)) or _record(function, kind, closure)


def forget() -> None:
    """Record every function anew from now on."""
    with _lock:
        _recipes.clear()
        _fixed.clear()
        _sized.clear()


def _key(kind: Kind, closure: Closure) -> Any:
    """What a program depends on: the function, the numbers that are written into it, and sizes, if it reads them."""
    own = kind, closure.identity
    shapes = tuple(t.shape for t in closure.tensors) if own in _sized else None
    return *own, tuple(repr(closure.numbers[n]) for n in _fixed.get(own, ())), _sizes(closure), shapes


def _sizes(closure: Closure) -> tuple[bool, ...]:
    """Which integers need 64 bits: they make other types, so another program."""
    return tuple(type(n) is int and not -(2**31) <= n < 2**31 for n in closure.numbers)


def _record(function: Callable[..., Any], kind: Kind, closure: Closure) -> _Recipe:
    """Trace with every number open; where Python needs one, with that one fixed."""
    _check_signature(function, kind)
    COUNTS.programs += 1
    name, own = _named(function), (kind, closure.identity)
    known = [unwrapped(t) for t in closure.tensors]
    fixed = set(_fixed.get(own, ()))
    try:
        program, tensors = _attempt(function, kind, closure, fixed)
    except Exception:  # whatever Python made of a number without a value
        every = set(range(len(closure.numbers)))
        fixed |= {n for n in every - fixed if not _traces(function, kind, closure, every - {n})}
        try:
            program, tensors = _attempt(function, kind, closure, fixed)
        except FlexAttentionError:
            raise
        except Exception as error:
            raise explained(error, name) from error
    places = []
    for tensor in tensors:
        found = [n for n, own_tensor in enumerate(known) if own_tensor is tensor]
        if not found:
            raise UnsupportedModError(
                f"{name} computes a tensor of shape {tuple(tensor.shape)} from what it captures: compute it once "
                "outside, and capture the result"
            )
        places.append(found[0])
    open_numbers = tuple(n for n in range(len(closure.numbers)) if n not in fixed)
    recipe = _Recipe(program, tuple(places), open_numbers, tuple(closure.held))
    _keep(kind, closure, fixed, recipe)
    return recipe


def _keep(kind: Kind, closure: Closure, fixed: Iterable[int], recipe: _Recipe) -> None:
    if len(_recipes) >= KEPT:
        forget()
    _fixed[kind, closure.identity] = tuple(sorted(fixed))
    _recipes[_key(kind, closure)] = recipe


def _traces(function: Callable[..., Any], kind: Kind, closure: Closure, fixed: set[int]) -> bool:
    try:
        _attempt(function, kind, closure, fixed)
    except Exception:  # whatever Python made of a number without a value
        return False
    return True


def _attempt(
    function: Callable[..., Any], kind: Kind, closure: Closure, fixed: set[int]
) -> tuple[Program, list[Tensor]]:
    """The program with all numbers open that are not ``fixed``, and the tensors it captures."""
    values = [v for n, v in enumerate(closure.numbers) if n not in fixed]

    def run(recorder: Recorder, arguments: Sequence[Tensor], opened: Sequence[Tensor]) -> Any:
        given = iter(opened)
        numbers = (v if n in fixed else next(given) for n, v in enumerate(closure.numbers))
        result = rebuild(function, numbers)(*arguments)
        if recorder.reads_size:
            _sized.add((kind, closure.identity))
        return result

    return program_of(run, kind, [unwrapped(t) for t in closure.tensors], values, _named(function))


def program_of(
    run: Callable[[Recorder, Sequence[Tensor], Sequence[Tensor]], Any],
    kind: Kind,
    tensors: Sequence[Tensor],
    values: Sequence[int | float],
    name: str,
) -> tuple[Program, list[Tensor]]:
    """The program of what ``run`` computes, and which tensors it captures.

    Args:
        run: called with the recorder, the arguments of the mod and the open numbers, all without values.
        kind: of the mod.
        tensors: what it may capture.
        values: of the open numbers, which say their types alone.
        name: of the mod, for messages.
    """
    names = ARGUMENTS[kind]
    inputs: list[tuple[str, str, int | None]] = [(n, "float32" if n == "score" else "int32", None) for n in names]
    for number, value in enumerate(values):
        small = type(value) is int and -(2**31) <= value < 2**31
        dtype = "float32" if type(value) is float else "int32" if small else "int64"
        inputs.append(("scalar", dtype, number))

    def checked(calls: GraphOfCalls, *arguments: Tensor) -> Tensor:
        opened = arguments[len(names) :]
        with Recorder(opened, calls) as recorder:
            return _checked(run(recorder, arguments[: len(names)], opened), name, kind)

    graph, captured = recorded(checked, [getattr(torch, dtype) for _, dtype, _ in inputs])
    lowering = Lowering(_line_of, tensors, has_gradient=kind == "score")
    program = lowering.run(graph, captured, inputs)
    scalars = tuple(dtype for op, dtype, _ in inputs if op == "scalar")
    return Program(program.nodes, program.outputs, program.captures, scalars), lowering.tensors


def _checked(result: Any, name: str, kind: Kind) -> Tensor:
    if isinstance(result, torch.SymBool | torch.SymInt | torch.SymFloat):
        raise UnsupportedModError(f"{name} {NEEDS_VALUE}")
    if kind == "mask" and type(result) in (int, float):
        raise KindError(f"{name} must return {_wanted(kind)}, got {result!r}: compare, or return True or False")
    if isinstance(result, bool | int | float) and not isinstance(result, Tensor):
        result = torch.full((), result, dtype=torch.bool if isinstance(result, bool) else torch.float32)
    if not isinstance(result, Tensor):
        raise KindError(f"{name} must return {_wanted(kind)}, got {type(result).__name__}")
    if result.dim() != 0:
        raise KindError(f"{name} must return one value, got a tensor of shape {tuple(result.shape)}")
    if kind == "mask" and result.dtype != torch.bool:
        raise KindError(f"{name} must return {_wanted(kind)}, got {result.dtype}: is it a score_mod?")
    if kind == "score" and not result.is_floating_point():
        raise KindError(f"{name} must return {_wanted(kind)}, got {result.dtype}: is it a mask_mod?")
    return result


def _wanted(kind: Kind) -> str:
    return "a bool" if kind == "mask" else "a floating-point score"


def _named(function: Callable[..., Any]) -> str:
    """A function by name and place, for messages."""
    inner = function.func if isinstance(function, functools.partial) else function
    code = getattr(inner, "__code__", None) or getattr(vars(type(inner)).get("__call__"), "__code__", None)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return name if code is None else f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"


def _check_signature(function: Callable[..., Any], kind: Kind) -> None:
    try:
        inspect.signature(function).bind(*ARGUMENTS[kind])
    except TypeError as error:
        ours = __name__.partition(".")[0]
        made = getattr(function, "__module__", "").startswith((f"{ours}.masks", f"{ours}.scores"))
        remedy = f": it makes one, call {getattr(function, '__name__', '')}(…)" if made else ""
        raise KindError(f"{_named(function)} must be {WRITTEN[kind]}: {error}{remedy}") from None
    except ValueError:  # a function in C that does not say what it takes
        pass


def explained(error: Exception, name: str) -> Exception:
    """What is wrong with a function that cannot be recorded."""
    lines = [user_line(frame) for frame, _ in traceback.walk_tb(error.__traceback__)]
    place = next((line for line in reversed(lines) if line), "")
    name = f"{name}{f', at {place},' if place else ''}"
    said = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if "data-dependent" in str(error) or "_local_scalar_dense" in str(error):
        return UnsupportedModError(f"{name} {NEEDS_VALUE}")
    if "numpy" in str(error):
        return UnsupportedModError(f"{name} calls NumPy, which knows no recorded numbers: use PyTorch's functions")
    return UnsupportedModError(f"{name} cannot be recorded: {said}")


def _line_of(node: fx.Node) -> str:
    return node.stack_trace.strip() if node.stack_trace else ""
