"""A function that Dynamo read, as a program: recorded from the nodes of its graph instead of by calling it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import FlexAttentionError, UnsupportedModError
from ..program import Program
from ..recorder import Recorder
from ..stats import COUNTS
from ..trace import Kind, explained, program_of
from ..unseen import unseen

PLACE = re.compile(r'File "([^"]+)", line (\d+)')


class Recorded(NamedTuple):
    """A program and what of the graph fills it.

    Attributes:
        program: what the function computes.
        captures: nodes of the captured tensors, in the program's order.
        numbers: nodes of the open numbers, in the program's order.
    """

    program: Program
    captures: list[fx.Node]
    numbers: list[fx.Node]


def record(result: fx.Node, kind: Kind, inputs: Sequence[fx.Node]) -> Recorded:
    """The program of a node of Dynamo's graph.

    Args:
        result: what the function returned.
        kind: of function.
        inputs: the nodes of its arguments.

    Raises:
        UnsupportedModError: it does what a kernel cannot.
    """
    COUNTS.programs += 1
    needed = _needed(result, inputs)
    quiet = _without_gradient(result.graph)
    leaves = [node for node in needed if node.op == "placeholder"]
    with _disable_current_modes():
        tensors = {n: _stand_in(n.meta["example_value"]) for n in leaves if _is_tensor(n)}
    numbers = [node for node in leaves if node not in tensors]
    values = [_hint(node.meta["example_value"]) for node in numbers]

    def run(recorder: Recorder, arguments: Sequence[Tensor], opened: Sequence[Tensor]) -> Any:
        known: dict[fx.Node, Any] = {**tensors, **dict(zip(inputs, arguments)), **dict(zip(numbers, opened))}
        for node in needed:
            if node not in known:
                recorder.line = _line(node)
                with torch.set_grad_enabled(node not in quiet):
                    known[node] = _called(node, known)
        if recorder.reads_size:
            raise UnsupportedModError(f"{kind}_mod reads the size of a tensor: compute the number outside")
        return known[result]

    name = f"{kind}_mod{f' ({_line(result)})' if _line(result) else ''}"
    try:
        program, captured = unseen(program_of, run, kind, list(tensors.values()), values, name)
    except FlexAttentionError:
        raise
    except Exception as error:
        raise explained(error, name) from error
    places = {id(tensor): node for node, tensor in tensors.items()}
    if any(id(tensor) not in places for tensor in captured):
        raise UnsupportedModError(
            f"{name} computes a tensor from what it captures: compute it once outside, and capture the result"
        )
    return Recorded(program, [places[id(tensor)] for tensor in captured], numbers)


def _needed(result: fx.Node, inputs: Sequence[fx.Node]) -> list[fx.Node]:
    """Nodes that lead from what is given to the result, in the graph's order."""
    reached, open_nodes = set(inputs), [result]
    while open_nodes:
        node = open_nodes.pop()
        if node not in reached:
            reached.add(node)
            open_nodes += node.all_input_nodes
    return [node for node in result.graph.nodes if node in reached]


def _without_gradient(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that were called while gradients were off."""
    found: set[fx.Node] = set()
    is_on = True
    for node in graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            is_on = bool(node.args[0])
        elif not is_on:
            found.add(node)
    return found


def _called(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    args, kwargs = map_aggregate((node.args, node.kwargs), lambda a: known[a] if isinstance(a, fx.Node) else a)
    target: Any = node.target
    if node.op == "call_function":
        return target(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    raise UnsupportedModError(f"a mod inside torch.compile cannot read {target}: capture a tensor instead")


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta["example_value"], Tensor)


def _stand_in(tensor: Tensor) -> Tensor:
    """Of the same type and number of dimensions: nothing else of a capture enters a program."""
    shape, strides = ([int(_hint(n)) for n in sizes] for sizes in (tensor.shape, tensor.stride()))
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta")


def _hint(number: Any) -> int | float:
    """The value that an open number had when Dynamo met it; any will do where it has none."""
    if not isinstance(number, torch.SymInt | torch.SymFloat):
        return number
    hint = number.node.hint
    if hint is None:
        return 2 if isinstance(number, torch.SymInt) else 2.0
    return int(hint) if isinstance(number, torch.SymInt) else float(hint)


def _line(node: fx.Node) -> str:
    """``file:line`` of the user's code."""
    places = PLACE.findall(node.stack_trace or "")
    return f"{Path(places[-1][0]).name}:{places[-1][1]}" if places else ""
