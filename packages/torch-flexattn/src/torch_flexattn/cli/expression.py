"""Masks and score modifications written on a command line: ``causal & (sliding_window(256) | ~document([0, 9, 20]))``.

The text is taken apart as a syntax tree, of which a few forms are allowed: names of factories, calls of them with
literal arguments, ``&``, ``|``, ``~`` and parentheses between masks, ``.then(…)`` between score modifications. Nothing
is evaluated as Python. A list in brackets becomes a tensor, a tuple stays one.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import torch

from .. import masks, scores
from ..errors import InputError
from ..mods import MaskMod, ScoreMod
from ..program import Program

FORMS = "names of masks and score modifications, calls with literal arguments, &, |, ~, .then(…) and parentheses"
LONGEST = 10_000
"""Characters of an expression."""
DEEPEST = 50
"""Operations inside operations."""


def factories(room: Any, result: str) -> dict[str, Callable[..., Any]]:
    """Factories of a package by name: those that return ``result`` and take no mod.

    Example:
        >>> "sliding_window" in factories(masks, "MaskMod"), "with_lengths" in factories(masks, "MaskMod")
        (True, False)
    """
    found = {}
    for name in room.__all__:
        notes = getattr(room, name).__annotations__
        if notes.get("return") == result and result not in list(notes.values())[:-1]:
            found[name] = getattr(room, name)
    return found


MASKS = factories(masks, "MaskMod")
SCORES = factories(scores, "ScoreMod")


def parse(text: str) -> MaskMod | ScoreMod:
    """The mask or score modification that an expression describes.

    Args:
        text: the expression.

    Raises:
        InputError: anything else than the forms above, an unknown name, arguments that a factory refuses.

    Example:
        >>> sorted(parse("causal & sliding_window(256)").dependencies)
        ['kv', 'q']
        >>> parse("softcap(20)").dependencies
        frozenset({'score'})
    """
    if len(text) > LONGEST:
        raise InputError(f"an expression has at most {LONGEST} characters, got {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise InputError(f"not an expression ({reason}): {text!r}; allowed are {FORMS}") from None
    return _without_lines(_mod(tree.body, text, 0))


def _mod(node: ast.AST, text: str, depth: int) -> MaskMod | ScoreMod:
    if depth > DEEPEST:
        raise InputError(f"an expression has at most {DEEPEST} operations inside one another: {text!r}")
    if isinstance(node, ast.Name):
        return _made(node.id, [], {})
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        names = [k.arg for k in node.keywords]
        if None in names:
            raise _refused(node, text)
        arguments = [_literal(a, text) for a in node.args]
        return _made(node.func.id, arguments, {str(k.arg): _literal(k.value, text) for k in node.keywords})
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr != "then" or len(node.args) != 1 or node.keywords:
            raise _refused(node, text)
        first, second = (_mod(n, text, depth + 1) for n in (node.func.value, node.args[0]))
        for mod in (first, second):
            if not isinstance(mod, ScoreMod):
                raise InputError(f".then(…) is between score modifications, got a mask in {text!r}")
        return first.then(second)  # type: ignore[union-attr]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
        left, right = (_mask(n, text, depth + 1) for n in (node.left, node.right))
        return left & right if isinstance(node.op, ast.BitAnd) else left | right
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return ~_mask(node.operand, text, depth + 1)
    raise _refused(node, text)


def _mask(node: ast.AST, text: str, depth: int) -> MaskMod:
    mod = _mod(node, text, depth)
    if not isinstance(mod, MaskMod):
        raise InputError(
            f"&, | and ~ are between masks, got a score modification: {ast.get_source_segment(text.strip(), node)!r}"
        )
    return mod


def _made(name: str, arguments: list[Any], named: dict[str, Any]) -> MaskMod | ScoreMod:
    factory = MASKS.get(name) or SCORES.get(name)
    if factory is None:
        raise InputError(
            f"unknown name {name!r}; masks are {', '.join(sorted(MASKS))}; score modifications are "
            f"{', '.join(sorted(SCORES))}"
        )
    signature = inspect.signature(factory)
    try:
        signature.bind(*arguments, **named)
    except TypeError as error:
        raise InputError(f"{name}: {error}; it takes {name}{_plain(signature)}") from None
    try:
        return factory(*arguments, **named)
    except (ValueError, TypeError, IndexError) as error:
        raise InputError(f"{name}: {error}") from error


def _plain(signature: inspect.Signature) -> str:
    return (
        str(signature.replace(return_annotation=inspect.Signature.empty)).replace("'", "").replace("IntTable", "list")
    )


def _literal(node: ast.AST, text: str) -> Any:
    try:
        value = ast.literal_eval(node)  # type: ignore[arg-type]
    except (ValueError, TypeError, RecursionError, MemoryError):
        raise InputError(
            f"arguments must be literals, got {ast.get_source_segment(text.strip(), node)!r} in {text!r}"
        ) from None
    if not isinstance(value, list):
        return value
    try:
        return torch.tensor(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{ast.get_source_segment(text.strip(), node)} is no tensor: {error}") from None


def _refused(node: ast.AST, text: str) -> InputError:
    part = ast.get_source_segment(text.strip(), node)
    return InputError(f"{part!r} is not allowed in {text!r}; allowed are {FORMS}")


def _without_lines(mod: Any) -> Any:
    """Without places in source files: there is none that the user wrote."""
    program = mod.program
    nodes = tuple(dataclasses.replace(node, line="") for node in program.nodes)
    return dataclasses.replace(mod, program=Program(nodes, program.outputs, program.captures, program.scalars))
